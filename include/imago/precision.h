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

/// 0 without weights.
inline double bits_per_weight(std::uint64_t bytes, std::uint64_t weights) noexcept {
  return weights == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(weights);
}

// ---- calibrating

struct CalibrateOptions {
  std::size_t context = 512;
  /// Also the products of all pairs of columns, which Rounding::compensated needs. Memory and file grow by columns²
  /// floats per input; none: where half of the free memory is enough.
  std::optional<bool> products = std::nullopt;
  std::size_t batch = 256;                                                 ///< examples of a dataset that run together
  std::function<void(std::size_t done, std::size_t total)> progress = {};  ///< windows or examples
};

struct CalibrateReport {
  std::size_t windows = 0, rows = 0, matrices = 0;
  std::size_t resumed = 0;  ///< windows that an earlier run had done
  bool products = false;    ///< whether the file has them
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
  /// What may be chosen; empty: q2_k q3_k iq4_xs q4_k iq4_nl q5_k q6_k q8_0 and float16, as far as they have no more
  /// than three bits above the budget; of networks all dtypes.
  std::vector<Format> types = {};
  /// A file of `calibrate_model`; empty: collected from the text, in memory. With `plain`, neither.
  std::string calibration = {};
  bool plain = false;
  /// None: compensated if the calibration has what that needs; one collected here has it unless it would take more than
  /// twice the memory of the model. Networks are planned with nearest.
  std::optional<Rounding> rounding = std::nullopt;
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

  double bits_per_weight() const noexcept { return imago::bits_per_weight(bytes, weights); }
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

/// A tensor that both models have; of networks, a layer of the grid with all that is inside it.
struct ComparedTensor {
  /// Tensors of decoders have their GGUF name, "blk.0.attn_q.weight", whatever the file format; layers "layers.0".
  std::string name;
  std::string type_a, type_b;
  std::string layer_a = {}, layer_b = {};  ///< kinds of layers: "Dense"
  std::uint64_t weights = 0, bytes_a = 0, bytes_b = 0;
  bool is_vector = false;
  std::optional<double> cosine = {}, rmse = {};  ///< none where there is nothing to compare
  std::optional<double> relative_rmse = {};      ///< rmse / root mean square in A; none too where A is zero and B not
  std::string problem = {};                      ///< why there are no figures: "shapes [2, 3] and [3, 2]"
};

/// A layer of A that is most like one at another place of B.
struct ShiftedLayer {
  std::string source, target;
  Coordinates source_at, target_at;
  double overlap = 0;
};

/// How well a network does on a dataset.
struct NetworkScore {
  LossKind loss_kind = LossKind::mse;
  double loss = 0;
  std::optional<double> accuracy = {};  ///< where targets are classes
};

struct ComparedModel {
  std::string path;
  std::string type;                    ///< of most of its weights
  std::uint64_t parameters = 0;        ///< weights in all its tensors
  std::uint64_t bytes = 0;             ///< of all its tensors, scales included
  std::vector<std::string> only = {};  ///< tensors or layers that the other lacks
  std::optional<NetworkScore> score = {};

  double bits_per_weight() const noexcept { return imago::bits_per_weight(bytes, parameters); }
};

/// What became of A, the reference, in B.
struct ModelComparison {
  ComparedModel a, b;
  std::string architecture = {};  ///< of language models
  bool of_networks = false;
  /// For networks, the mean of the cosines of their layers; else the cosine of all compared weights as if they were one
  /// tensor. 0 if nothing could be compared.
  double overall = 0;
  std::vector<ComparedTensor> tensors;  ///< in the order of A
  std::vector<ShiftedLayer> logic_shifts = {};
  std::optional<DivergenceReport> divergence = {};  ///< on a text
};

struct CompareOptions {
  /// Language models are run over it, side by side. None: weights only.
  std::optional<std::string> text = std::nullopt;
  std::size_t context = 512;
  bool fast = false;  ///< as LanguageModelOptions::fast
  /// What is being done, and how far it is.
  std::function<void(std::string_view what, std::size_t done, std::size_t total)> progress = {};
};

/// Compares two files of tensors: GGUF, safetensors, Hugging Face folders, in any pairing. Streams: memory is some
/// pieces of tensors, and with a text both models. Throws IoError, FormatError; UnsupportedError for networks of
/// layers, for models of different architectures and for files without a tensor in common; with a text as
/// `measure_divergence`.
ModelComparison compare_models(const std::string& a, const std::string& b, const CompareOptions& options = {});

/// Compares networks layer by layer: cosines are those of `compare_networks`, errors those of the weights as they are
/// computed with. Paths are left empty.
ModelComparison compare_layers(const Network& a, const Network& b, bool strict_dtype = false);

/// Runs the network over all examples. Without a loss: cross-entropy where targets are class numbers, else mse. Throws
/// ShapeError and UsageError if data, network and loss do not fit.
NetworkScore score_network(Network& network, const Dataset& data, const std::optional<Loss>& loss = std::nullopt,
                           std::size_t batch = 256);

// ---- sweeping

/// The type that a tensor has.
struct TypedTensor {
  std::string name, type;
  std::uint64_t weights = 0, bytes = 0;
};

/// One way to store a model, and what it costs.
struct SweepPoint {
  std::string name;  ///< of the type, or the path of the plan
  bool is_plan = false;
  std::uint64_t bytes = 0;  ///< of all tensors
  double bits_per_weight = 0;
  std::optional<double> relative_rmse = {};         ///< of the weights that it changes
  std::optional<DivergenceReport> divergence = {};  ///< of language models, on a text
  std::optional<NetworkScore> score = {};           ///< of networks, on data
  bool on_front = false;                            ///< nothing tried is both smaller and better
  std::vector<TypedTensor> types = {};              ///< of plans and mixes: of each matrix

  /// What the front is about: mean divergence, else loss, else the error of the weights. Infinite if unknown.
  double cost() const noexcept;
};

struct SweepReport {
  std::string model;         ///< path
  std::string architecture;  ///< of language models
  std::string type;          ///< of most weights of the model as it is
  std::uint64_t parameters = 0, bytes = 0;
  std::optional<double> perplexity = {};  ///< of the model as it is
  std::optional<NetworkScore> score = {};
  std::vector<SweepPoint> points;  ///< in the order asked for, plans last
};

/// What a sweep will take, told before it starts.
struct SweepEstimate {
  double seconds = 0;  ///< from the time one window took; 0 without a text
  std::uint64_t memory_bytes = 0;
  std::size_t models = 0, rounds = 0;  ///< models that run side by side in several rounds
};

struct SweepOptions {
  std::vector<Format> types = {};       ///< empty: default_sweep_types, or the 21 dtypes for networks
  std::vector<std::string> plans = {};  ///< files of plans
  std::string calibration = {};         ///< as ConvertOptions::calibration
  bool mix = false;                     ///< the usual mix of each type; else every matrix takes it (`pure`)
  Granularity granularity = Granularity::tensor;
  int group = 32;
  std::optional<Calibrator> calibrator = std::nullopt;  ///< as ConvertOptions::calibrator
  std::size_t context = 512;
  bool fast = true;
  std::uint64_t memory_bytes = 0;  ///< models may take this much together; 0: two thirds of what is free
  std::function<void(const SweepEstimate&)> estimate = {};
  std::function<void(std::string_view what, std::size_t done, std::size_t total)> progress = {};
};

/// Block formats and dtypes that people choose among.
std::vector<Format> default_sweep_types();

/// A language model in each of the types, packed in memory: no file is written. Sizes are those of the files that
/// `convert_model` would write. With a text, the predictions are compared with those of the model as it is stored;
/// several types run side by side where memory allows, so that the original runs once for all of them.
/// Throws as `measure_divergence` and LanguageModel::load.
SweepReport sweep_model(const std::string& model, const std::optional<std::string>& text,
                        const SweepOptions& options = {});

/// A network in each of the dtypes, with data its loss and accuracy. The network is as before afterwards. Throws
/// UnsupportedError for block formats, and as score_network.
SweepReport sweep_network(Network& network, const Dataset* data, const std::optional<Loss>& loss = std::nullopt,
                          const SweepOptions& options = {});

// ---- reporting

/// A figure that is to be seen first.
struct ReportFact {
  std::string label, value, note;
};

/// A way to store a model as a point of size and cost.
struct CurvePoint {
  std::string name;
  std::uint64_t bytes = 0;
  double bits_per_weight = 0;
  double cost = 0;  ///< less is better; infinite ones are in the table only
  bool on_front = false;
  std::vector<std::string> cells = {};  ///< of the columns
};
struct QualityCurve {
  std::string heading, explanation;
  std::string cost_name;                  ///< "mean KL divergence (nats)"
  std::vector<std::string> columns = {};  ///< of the table, beside name, size, bits per weight
  std::vector<CurvePoint> points;
};

/// A distribution of divergences.
struct DivergenceSpread {
  std::string name;
  DivergenceReport report;
};

/// What a page shows; parts that are empty are left out.
struct PrecisionReport {
  std::string title, subtitle;
  std::string summary;  ///< a sentence or two in words
  std::vector<ReportFact> facts = {};
  std::vector<QualityCurve> curves = {};
  std::vector<ComparedTensor> layers = {};
  std::vector<DivergenceSpread> spreads = {};
  std::vector<TypedTensor> plan = {};
  std::string plan_heading = {};
  std::vector<std::string> notes = {};
};

PrecisionReport report_of(const ModelComparison& comparison);
PrecisionReport report_of(const SweepReport& sweep);

/// One page of HTML with everything in it: no script, style, font or picture is loaded from anywhere. For phones, paper
/// and the dark. Every text is escaped. The same report gives the same bytes.
std::string report_html(const PrecisionReport& report);
/// The page in a file that appears whole or not at all. Throws IoError.
void write_report_html(const PrecisionReport& report, const std::string& path);

}  // namespace imago
