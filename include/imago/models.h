#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/codec.h"
#include "imago/files.h"
#include "imago/format.h"
#include "imago/numeric.h"

namespace imago {

/// How a model is rewritten. Behaviour first, then what it may cost.
struct ConvertOptions {
  /// The type that weights take; none: each keeps its own where the target can hold it.
  std::optional<Format> type = std::nullopt;
  /// Of dtypes with scales; none: the least squared error, but absmax for 8 bits and more with scales per row or group,
  /// where it costs much and gains little. Layers that have the type already keep their scales.
  std::optional<Calibrator> calibrator = std::nullopt;
  double percentile = 0.999;
  Granularity granularity = Granularity::tensor;
  int group = 32;           ///< with Granularity::group
  bool zero_points = true;  ///< of unsigned types, as in Scheme; false for files that the original engine shall read
  /// Patterns (ECMAScript, found anywhere in the name of the tensor in the target) and the types they ask for; the
  /// first that fits decides, before every other rule.
  std::vector<std::pair<std::string, Format>> tensor_types = {};
  /// A file of `calibrate_model` or an importance matrix of llama.cpp; empty: none. Matrices that it knows nothing of
  /// are encoded plainly, with a note. One of another model is a UsageError.
  std::string calibration = {};
  /// None: `compensated` if the calibration has products (not for tq1_0), else what the plan was measured with, else
  /// `nearest`.
  std::optional<Rounding> rounding = std::nullopt;
  /// A plan (imago/precision.h): the types of its tensors come before every other rule but `tensor_types`. Empty: none.
  std::string plan = {};
  /// No usual mix: every tensor of two or more dimensions whose rows are a multiple of the block takes `type`.
  bool pure = false;
  bool allow_nonfinite = false;  ///< else weights and scales that are not finite are refused
  bool dry_run = false;          ///< plans, and writes nothing
  bool measure_error = false;    ///< fills the errors of the report; costs a decoding of what was written
  LoadOptions load = {};
  ImportOptions import = {};  ///< where tensors that say no more than names and shapes become layers
  std::uint64_t shard_bytes = std::uint64_t{4} << 30;  ///< of Hugging Face folders

  /// Called as it goes on, from the calling thread: bytes of the source done, bytes in all.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
};

struct ConvertedTensor {
  std::string name;  ///< in the target
  std::string from_type, to_type;
  Shape shape;
  std::uint64_t from_bytes = 0, to_bytes = 0;
  std::string reason;                                  ///< why it has this type: "asked for", "norms stay float32"
  std::optional<double> relative_rmse = std::nullopt;  ///< with measure_error, where the type changed
};

struct ConvertReport {
  FileForm from = FileForm::safetensors, to = FileForm::safetensors;
  std::uint64_t from_bytes = 0, to_bytes = 0;           ///< of the tensors
  std::optional<Calibrator> calibrator = std::nullopt;  ///< how scales were found; none: no tensor took new ones
  std::uint64_t parameters = 0;
  std::vector<ConvertedTensor> tensors;
  std::vector<std::string> notes;                      ///< what was lost or left out, a sentence each
  std::optional<double> relative_rmse = std::nullopt;  ///< of all tensors whose error was measured, as if they were one
};

/// Rewrites model `in` as `out`, whose form is that of its extension (`.gguf .safetensors .json .entity`); a name
/// without one is a Hugging Face folder. Streams: memory is a few pieces of tensors, not the model. `out` appears whole
/// or not at all, and may be `in`. Throws IoError, FormatError, UnsupportedError if the target cannot hold a type that
/// was asked for, UsageError for options without meaning.
ConvertReport convert_model(const std::string& in, const std::string& out, const ConvertOptions& options = {});

// ---- plans

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

// ---- models without training, to measure speed with

struct RandomModelOptions {
  Format type = BlockFormat::q4_k;            ///< of the matrices; rows that fit no block of it take smaller blocks
  std::optional<Format> ends = std::nullopt;  ///< of embedding and output; none: the same
  std::uint64_t seed = 1;
  std::function<void(std::string_view tensor, std::size_t done, std::size_t total)> progress = {};
};

/// Writes the language model that `config`, the text of a config.json, describes as a GGUF file with random weights and
/// the smallest tokenizer that every reader accepts. The file appears whole or not at all. Throws FormatError for a
/// config that is wrong, UnsupportedError for an architecture or type that imago or GGUF does not have, UsageError for
/// a vocabulary too small for the tokenizer, IoError.
void write_random_model(const std::string& config, const std::string& path, const RandomModelOptions& options = {});

}  // namespace imago
