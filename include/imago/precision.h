#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/format.h"
#include "imago/lm.h"
#include "imago/models.h"
#include "imago/train.h"

namespace imago {

// What precision costs, measured on the model at hand: which weights matter, which type each should have, and how far
// the outcome is from the original. Models are paths; language models are judged on a text, networks on a dataset.

// ---- calibrating

struct CalibrateOptions {
  std::size_t context = 512;
  /// Also the products of all pairs of columns, which Rounding::compensated needs. Memory and file grow by columns²
  /// floats per input.
  bool products = false;
  std::size_t batch = 256;                                                 ///< examples of a dataset that run together
  std::function<void(std::size_t done, std::size_t total)> progress = {};  ///< windows or examples
};

struct CalibrateReport {
  std::size_t windows = 0, rows = 0, matrices = 0;
  std::size_t resumed = 0;  ///< windows that an earlier run had done
  std::uint64_t bytes = 0;  ///< of the file
};

/// Runs the text through a language model and writes to `out` what ConvertOptions::calibration reads. A run that was
/// stopped goes on where it was if model, text and options are the same. Throws UsageError for a text shorter than a
/// window, FormatError for activations that are not finite, naming the matrix.
CalibrateReport calibrate_model(const std::string& model, std::string_view text, const std::string& text_name,
                                const std::string& out, const CalibrateOptions& options = {});
/// The same for a network of layers and the inputs of a dataset.
CalibrateReport calibrate_network(const std::string& model, const Dataset& data, const std::string& data_name,
                                  const std::string& out, const CalibrateOptions& options = {});

// ---- planning

/// A type for each weight matrix of a language model, by the names that its tensors have in a GGUF file, or for each
/// layer of a network, by its path. As a file it is JSON that people may edit:
///
///   {"imago_plan": 1, "rounding": "nearest", "tensors": {"blk.0.attn_q.weight": "q5_k", …}, "facts": {…}}
struct TypePlan {
  std::vector<std::pair<std::string, Format>> tensors;  ///< in the order of the file
  Rounding rounding = Rounding::nearest;                ///< where calibration is given and the type has it
  std::string facts = {};  ///< a JSON object: where the plan comes from and what was measured; nobody relies on it
};

/// Strict: a key that means nothing, a name that comes twice and a type that nobody knows are FormatErrors with their
/// place. `file` is the name for errors.
TypePlan parse_plan(std::string_view json, std::string_view file);
std::string format_plan(const TypePlan& plan);
/// Throws IoError, and as parse_plan.
TypePlan read_plan(const std::string& path);
/// Appears whole or not at all. Throws IoError.
void write_plan(const TypePlan& plan, const std::string& path);

/// What planning will take, known after a short look at the model.
struct PlanEstimate {
  double seconds = 0;
  std::uint64_t memory_bytes = 0;
  std::size_t measurements = 0;  ///< how often some windows run through the model, or the data through the network
};

struct PlanOptions {
  /// One of them: bits per weight of the matrices (as `pure` morphing counts them: q4_k is 4.5), or bytes of all
  /// tensors, vectors in float32 included.
  std::optional<double> bits = std::nullopt;
  std::optional<std::uint64_t> size = std::nullopt;
  /// What may be chosen; empty: q2_k q3_k iq4_xs q4_k iq4_nl q5_k q6_k q8_0 and float16, of networks all dtypes.
  std::vector<Format> types = {};
  /// A file of `calibrate_model`; empty: collected from the text, in memory. With `plain`, neither.
  std::string calibration = {};
  bool plain = false;
  Rounding rounding = Rounding::nearest;
  std::size_t context = 512;
  std::size_t windows = 8;  ///< of the text, to measure with; twice as many others judge the plan
  std::size_t batch = 256;  ///< examples of a dataset that run together

  std::function<void(const PlanEstimate&)> on_estimate = {};  ///< before anything takes long
  std::function<void(std::string_view step, std::size_t done, std::size_t total)> progress = {};
};

/// How far a model is from the original: on windows of the text that the choice did not see, or on the dataset.
struct PlanQuality {
  double added = 0;                               ///< mean KL in nats; of networks: by how much the loss is larger
  double level = 0;                               ///< perplexity; of networks: the loss
  std::optional<double> accuracy = std::nullopt;  ///< of networks that tell classes apart
};

struct TensorChoice {
  std::string name;
  Format type = DType::float32;
  std::uint64_t weights = 0, bytes = 0;
  double added = 0;  ///< what this type alone adds, as measured or estimated
};

struct PlanReport {
  TypePlan plan;
  std::vector<TensorChoice> tensors;                       ///< as in the plan
  std::uint64_t weights = 0, bytes = 0, budget_bytes = 0;  ///< of the matrices
  double predicted = 0;                                    ///< sum of what the choices add
  PlanQuality original, measured;
  /// The best single type that fits the budget, where one does.
  std::optional<Format> uniform_type = std::nullopt;
  std::uint64_t uniform_bytes = 0;
  PlanQuality uniform;
  bool kept_uniform = false;  ///< the mixture was no better, so the plan is the single type
  std::size_t windows = 0, judged_windows = 0;
  double seconds = 0;
  std::uint64_t memory_bytes = 0;  ///< estimated

  double bits_per_weight() const noexcept {
    return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
  }
};

/// Chooses a type for each matrix of a language model so that they fit the budget and the output moves least: measures
/// what each type of each matrix does to the predictions on some windows of the text, solves the allocation, measures
/// again in the company of the other choices, and judges the outcome on other windows (docs/precision.md). Writes
/// nothing. Throws UsageError for a budget that cannot be met, saying the smallest possible, a text too short, a
/// calibration of another model, types that do not fit.
PlanReport plan_model(const std::string& model, std::string_view text, const std::string& text_name,
                      const PlanOptions& options);
/// The same for a network of layers and the loss on a dataset: mean squared error, or cross entropy where targets are
/// class numbers. All types of all layers are measured.
PlanReport plan_network(const std::string& model, const Dataset& data, const std::string& data_name,
                        const PlanOptions& options);

// ---- comparing

// ---- sweeping

}  // namespace imago
