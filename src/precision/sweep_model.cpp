// Measures a language model in many types, several at a time next to the original. Nothing is written: each candidate
// is packed in memory.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "base/system.h"
#include "convert/target_types.h"
#include "convert/type_plan.h"
#include "guided/calibration.h"
#include "guided/encode_matrix.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "lm/matrix_encoder.h"
#include "models/open_model.h"
#include "models/recipe.h"
#include "models/tensor_layout.h"
#include "models/traits.h"
#include "precision/measures.h"
#include "precision/model_tensors.h"
#include "precision/sensitivity.h"

namespace imago {

namespace {

/// A way to store a decoder.
struct Candidate {
  std::string name;
  bool is_plan = false;
  Rounding rounding = Rounding::nearest;
  std::uint64_t bytes = 0;                           ///< of all tensors in the file that convert_model would write
  std::vector<convert::PlannedTensor> tensors = {};  ///< by canonical names
};

std::uint64_t bytes_of(std::span<const convert::PlannedTensor> plan) {
  std::uint64_t bytes = 0;
  for (const convert::PlannedTensor& tensor : plan) bytes += tensor.bytes();
  return bytes;
}

/// The type of each matrix.
std::vector<TypedTensor> types_of(const Candidate& candidate) {
  std::vector<TypedTensor> types;
  for (const convert::PlannedTensor& tensor : candidate.tensors) {
    if (tensor.recipe->shape.rank() < 2) continue;
    types.push_back({tensor.recipe->name, convert::type_name(tensor.type, tensor.source()),
                     tensor.recipe->shape.elements(), tensor.bytes()});
  }
  return types;
}

/// Memory of a model besides its packed weights: padding of panel layouts, a cache for one window.
constexpr double kRunFormShare = 1.2;

std::uint64_t memory_of(std::span<const Candidate> round) {
  double bytes = 0;
  for (const Candidate& candidate : round) bytes += kRunFormShare * static_cast<double>(candidate.bytes);
  return static_cast<std::uint64_t>(bytes);
}

/// Consecutive candidates that fit in memory together; at least one.
std::vector<std::span<const Candidate>> rounds_of(std::span<const Candidate> candidates, std::uint64_t memory) {
  std::vector<std::span<const Candidate>> rounds;
  while (!candidates.empty()) {
    std::size_t count = 1;
    while (count < candidates.size() && memory_of(candidates.first(count + 1)) <= memory) ++count;
    rounds.push_back(candidates.first(count));
    candidates = candidates.subspan(count);
  }
  return rounds;
}

double seconds_of_a_window(const LanguageModel& model, std::span<const TokenId> window) {
  Sequence sequence(model, {.context = window.size(), .cache = CacheKind::float32});
  const auto start = std::chrono::steady_clock::now();
  std::vector<float> logits(window.size() * model.vocabulary());
  sequence.append(window, logits);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Sweep {
 public:
  Sweep(const std::string& path, const std::optional<std::string>& text, const SweepOptions& options)
      : path_(path),
        text_(text),
        options_(options),
        file_(open(path)),
        traits_(models::read_traits(file_)),
        gguf_(models::make_recipe(file_, FileForm::gguf)),
        scaled_(gguf_),
        stored_(models::make_recipe(file_, FileForm::safetensors)) {
    scaled_.target = FileForm::safetensors;
    for (const models::TensorRecipe& tensor : gguf_.tensors) parameters_ += tensor.shape.elements();
    plan_candidates();
    if (options.calibration.empty()) return;
    calibration_ = guided::Calibration::read(options.calibration);
    guided::check_same_model(calibration_, guided::sketch_model(file_), path);
  }

  SweepReport run() {
    SweepReport report;
    report.model = path_;
    report.architecture = precision::architecture_of(file_);
    report.parameters = parameters_;
    for (const files::StoredTensor& tensor : file_.tensors()) {
      report.bytes += tensor.stored_bytes();
    }
    const LanguageModel reference = LanguageModel::load(path_, {.fast = options_.fast});
    report.type = reference.type();
    std::uint64_t memory =
        options_.memory_bytes != 0 ? options_.memory_bytes : inspect_machine().available_bytes / 3 * 2;
    memory -= std::min(memory, reference.bytes());
    const std::vector<std::span<const Candidate>> rounds = rounds_of(candidates_, text_ ? memory : 0);
    foresee(reference, rounds);
    for (const std::span<const Candidate> round : rounds) try_round(reference, round, report);
    precision::mark_front(report.points);
    return report;
  }

 private:
  static files::TensorFile open(const std::string& path) {
    files::TensorFile file = models::open_model(path);
    if (file.form() == FileForm::safetensors) {
      throw UnsupportedError(fmt::format(
          "{}: a safetensors file alone is not a language model; give the folder with its config.json", path));
    }
    return file;
  }

  /// Plans each type and each plan file of the options: block formats and wide floats as in a GGUF file, dtypes with
  /// scales as in safetensors.
  void plan_candidates() {
    for (const Format type : options_.types.empty() ? default_sweep_types() : options_.types) {
      ConvertOptions wanted{.type = type, .calibration = options_.calibration, .pure = !options_.mix};
      if (type.has_scales()) {
        wanted.granularity = options_.granularity;
        wanted.group = options_.group;
        wanted.calibrator = options_.calibrator;
      }
      plan(wanted, std::string(type.name()), convert::can_hold(FileForm::gguf, type));
    }
    for (const std::string& path : options_.plans) {
      const TypePlan types = read_plan(path);
      const bool in_gguf = std::ranges::all_of(
          types.tensors, [](const auto& tensor) { return convert::can_hold(FileForm::gguf, tensor.second); });
      Candidate& planned = plan({.calibration = options_.calibration, .plan = path}, path, in_gguf);
      planned.is_plan = true;
      planned.rounding = types.rounding;
    }
  }

  Candidate& plan(const ConvertOptions& wanted, std::string name, bool in_gguf) {
    Candidate& candidate = candidates_.emplace_back();
    candidate.name = std::move(name);
    candidate.tensors = convert::plan_types(in_gguf ? gguf_ : scaled_, wanted);
    // Each file format has its own rules for vectors, so the size comes from a plan for that format.
    candidate.bytes = bytes_of(in_gguf ? candidate.tensors : convert::plan_types(stored_, wanted));
    return candidate;
  }

  /// Estimates the run, and refuses a text that is too short before anything is packed.
  void foresee(const LanguageModel& reference, std::span<const std::span<const Candidate>> rounds) {
    SweepEstimate estimate{.models = candidates_.size(), .rounds = rounds.size()};
    for (const std::span<const Candidate> round : rounds) {
      estimate.memory_bytes = std::max(estimate.memory_bytes, reference.bytes() + memory_of(round));
    }
    if (text_) {
      const std::vector<TokenId> ids = reference.require_tokenizer().encode(*text_);
      windows_ = ids.size() / std::max<std::size_t>(options_.context, 1);
      if (windows_ == 0) measure_perplexity(reference, *text_, {.context = options_.context});  // throws
      const double window = seconds_of_a_window(reference, std::span(ids).first(options_.context));
      estimate.seconds = window * static_cast<double>(windows_ * (estimate.models + estimate.rounds));
    }
    // Packing a model takes about as long as running it on some windows.
    packing_ = std::max<std::size_t>(1, windows_ / 4);
    total_ = estimate.models * packing_ + windows_ * (estimate.models + estimate.rounds);
    if (options_.estimate) options_.estimate(estimate);
  }

  /// A matrix in the type that the candidate has for it; none if it keeps its own. Adds to `change` what that changes.
  std::optional<lm::EncodedWeights> encode(const Candidate& candidate, const models::MatrixKey& key,
                                           std::span<const float> weights, std::size_t rows, std::size_t cols,
                                           precision::DistortionSums& change) const {
    const std::string name = models::matrix_name(traits_, key.role, key.block);
    const auto planned =
        std::ranges::find(candidate.tensors, name,
                          [](const convert::PlannedTensor& tensor) -> std::string_view { return tensor.recipe->name; });
    if (planned == candidate.tensors.end() || planned->copied || !planned->type.format) return std::nullopt;
    const guided::InputStatistics* known = calibration_.find(name, key.expert, cols);
    const Rounding rounding = known == nullptr ? Rounding::nearest : candidate.rounding;
    guided::EncodedMatrix matrix = guided::encode_matrix(weights, rows, cols, planned->scheme, rounding, known);
    change.add(weights, guided::decode_matrix(matrix, planned->scheme, rows, cols));
    lm::EncodedWeights encoded = precision::packed(planned->scheme.format, matrix.codes);
    encoded.scales = std::move(matrix.scales);
    encoded.zero_points = std::move(matrix.zero_points);
    encoded.scale_group = matrix.scale_group;
    if (encoded.scales.size() == 1) {  // products read one per row
      encoded.scales.assign(rows, encoded.scales.front());
      if (!encoded.zero_points.empty()) encoded.zero_points.assign(rows, encoded.zero_points.front());
      encoded.scale_group = cols;
    }
    return encoded;
  }

  void try_round(const LanguageModel& reference, std::span<const Candidate> round, SweepReport& report) {
    const std::size_t first = report.points.size();
    std::vector<LanguageModel> models;
    for (const Candidate& candidate : round) {
      show(candidate.name);
      precision::DistortionSums change;
      models.push_back(
          lm::load_encoded(path_, {.fast = options_.fast},
                           [&](const models::MatrixKey& key, std::span<const float> weights, std::size_t rows,
                               std::size_t cols) { return encode(candidate, key, weights, rows, cols, change); }));
      SweepPoint& point = report.points.emplace_back();
      point.name = candidate.name;
      point.is_plan = candidate.is_plan;
      point.bytes = candidate.bytes;
      point.bits_per_weight = bits_per_weight(point.bytes, parameters_);
      // If every matrix kept its type, nothing was encoded and nothing changed.
      point.relative_rmse = change.count() == 0 ? 0 : change.relative_rmse();
      if (candidate.is_plan || options_.mix) point.types = types_of(candidate);
      done_ += packing_;
    }
    if (!text_) return;
    std::vector<const LanguageModel*> others;
    for (const LanguageModel& model : models) others.push_back(&model);
    const std::string label = round.size() == 1 ? round.front().name : fmt::format("{} types together", round.size());
    const std::size_t before = done_;
    DivergenceOptions measure{.context = options_.context};
    measure.progress = [&](std::size_t done, std::size_t) {
      done_ = before + done * (1 + round.size());
      show(label);
    };
    const std::vector<DivergenceReport> measured = measure_divergence(reference, others, *text_, measure);
    for (std::size_t i = 0; i < measured.size(); ++i) report.points[first + i].divergence = measured[i];
    report.perplexity = measured.front().reference_perplexity;
  }

  void show(const std::string& what) const {
    if (options_.progress) options_.progress(what, std::min(done_, total_), std::max<std::size_t>(total_, 1));
  }

  const std::string& path_;
  const std::optional<std::string>& text_;
  const SweepOptions& options_;
  files::TensorFile file_;
  models::Traits traits_;
  guided::Calibration calibration_;
  models::ModelRecipe gguf_, scaled_, stored_;  // they refer to the file
  std::uint64_t parameters_ = 0;
  std::vector<Candidate> candidates_;
  std::size_t windows_ = 0, packing_ = 1;
  std::size_t done_ = 0, total_ = 0;
};

}  // namespace

SweepReport sweep_model(const std::string& model, const std::optional<std::string>& text, const SweepOptions& options) {
  return Sweep(model, text, options).run();
}

}  // namespace imago
