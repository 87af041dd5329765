// Measures a language model in many types, several at a time next to the original.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <vector>

#include "base/system.h"
#include "guided/calibration.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "lm/matrix_encoder.h"
#include "models/traits.h"
#include "precision/measures.h"
#include "precision/model_tensors.h"
#include "precision/sweep_candidates.h"

namespace imago {

namespace {

using precision::Candidate;

/// Memory of a model besides its packed weights: padding of panel layouts, a cache for one window.
constexpr double kRunFormShare = 1.2;

/// Consecutive candidates that fit in memory together; at least one.
std::vector<std::span<const Candidate>> rounds_of(std::span<const Candidate> candidates, std::uint64_t memory) {
  std::vector<std::span<const Candidate>> rounds;
  for (std::size_t begin = 0; begin < candidates.size();) {
    std::size_t end = begin;
    double bytes = 0;
    do {
      bytes += kRunFormShare * static_cast<double>(candidates[end++].bytes);
    } while (end < candidates.size() &&
             bytes + kRunFormShare * static_cast<double>(candidates[end].bytes) <= static_cast<double>(memory));
    rounds.push_back(candidates.subspan(begin, end - begin));
    begin = end;
  }
  return rounds;
}

std::uint64_t memory_of(std::span<const Candidate> round) {
  double bytes = 0;
  for (const Candidate& candidate : round) bytes += kRunFormShare * static_cast<double>(candidate.bytes);
  return static_cast<std::uint64_t>(bytes);
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
        candidates_(file_, options) {
    if (options.calibration.empty()) return;
    calibration_ = guided::Calibration::read(options.calibration);
    guided::check_same_model(calibration_, guided::sketch_model(file_), path);
  }

  SweepReport run() {
    SweepReport report;
    report.model = path_;
    report.architecture = precision::architecture_of(file_);
    report.parameters = candidates_.parameters();
    for (const files::StoredTensor& tensor : file_.tensors()) {
      report.bytes += tensor.bytes.size() + tensor.scale_values.size() * sizeof(float);
    }
    const LanguageModel reference = LanguageModel::load(path_, {.fast = options_.fast});
    report.type = reference.type();
    const std::span<const Candidate> all = candidates_.all();
    std::uint64_t memory =
        options_.memory_bytes != 0 ? options_.memory_bytes : inspect_machine().available_bytes / 3 * 2;
    memory -= std::min(memory, reference.bytes());
    const std::vector<std::span<const Candidate>> rounds = text_ ? rounds_of(all, memory) : rounds_of(all, 0);
    foresee(reference, rounds);
    for (const std::span<const Candidate> round : rounds) try_round(reference, round, report);
    precision::mark_front(report.points);
    return report;
  }

 private:
  static files::TensorFile open(const std::string& path) {
    files::TensorFile file = files::TensorFile::open(path);
    if (file.form() == FileForm::safetensors) {
      throw UnsupportedError(fmt::format(
          "{}: a safetensors file alone is not a language model; give the folder with its config.json", path));
    }
    return file;
  }

  /// Estimates the run, and refuses a text that is too short before anything is packed.
  void foresee(const LanguageModel& reference, std::span<const std::span<const Candidate>> rounds) {
    SweepEstimate estimate{.models = candidates_.all().size(), .rounds = rounds.size()};
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

  void try_round(const LanguageModel& reference, std::span<const Candidate> round, SweepReport& report) {
    const std::size_t first = report.points.size();
    std::vector<LanguageModel> models;
    for (const Candidate& candidate : round) {
      show(candidate.name);
      precision::PlannedEncoder encoder(traits_, candidate.tensors, calibration_, candidate.rounding);
      models.push_back(
          lm::load_encoded(path_, {.fast = options_.fast},
                           [&](const models::MatrixKey& key, std::span<const float> weights, std::size_t rows,
                               std::size_t cols) { return encoder.encode(key, weights, rows, cols); }));
      SweepPoint& point = report.points.emplace_back();
      point.name = candidate.name;
      point.is_plan = candidate.is_plan;
      point.bytes = candidate.bytes;
      point.bits_per_weight = 8.0 * static_cast<double>(point.bytes) / static_cast<double>(candidates_.parameters());
      // If every matrix kept its type, nothing was encoded and nothing changed.
      point.relative_rmse = encoder.change().count() == 0 ? 0 : encoder.change().relative_rmse();
      if (candidate.is_plan || options_.mix) point.types = candidate.types();
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
  precision::Candidates candidates_;
  std::size_t windows_ = 0, packing_ = 1;
  std::size_t done_ = 0, total_ = 0;
};

}  // namespace

SweepReport sweep_model(const std::string& model, const std::optional<std::string>& text, const SweepOptions& options) {
  return Sweep(model, text, options).run();
}

}  // namespace imago
