// Chooses a type for each layer of a network. Networks are small compared with language models: every type of every
// layer is measured, and nothing is estimated.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "convert/target_types.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "precision/allocation.h"
#include "precision/measures.h"
#include "precision/plan_parts.h"

namespace imago {

namespace {

using namespace precision;

/// Replaces a loss that is not finite: worse than any other, but can be added.
constexpr double kHopeless = 1e30;

/// The examples of one remainder modulo `step`, so that each half covers all of a sorted file.
Dataset every(const Dataset& data, std::size_t first, std::size_t step) {
  const auto pick = [&](const Tensor<float>& from) {
    std::vector<std::size_t> extents(from.shape().extents().begin(), from.shape().extents().end());
    const std::size_t examples = extents[0], values = examples == 0 ? 0 : from.size() / examples;
    extents[0] = (examples - first + step - 1) / step;
    Tensor<float> some{Shape(extents)};
    for (std::size_t i = 0; i < extents[0]; ++i) {
      std::ranges::copy(from.values().subspan((first + i * step) * values, values),
                        some.values().subspan(i * values, values).begin());
    }
    return some;
  };
  return {pick(data.x), pick(data.y)};
}

class NetworkPlanner {
 public:
  NetworkPlanner(const std::string& path, const Dataset& data, const PlanOptions& options)
      : options_(options), network_(load_network(path)) {
    if (data.size() != (data.y.shape().rank() == 0 ? 0 : data.y.shape()[0])) {
      throw ShapeError(
          fmt::format("the dataset has {} inputs, and targets {}", data.size(), data.y.shape().to_string()));
    }
    if (!options.calibration.empty() || options.rounding.value_or(Rounding::nearest) != Rounding::nearest) {
      throw UsageError(
          fmt::format("{}: plans of networks are made with plain rounding; leave the calibration out", path));
    }
    if (data.size() < 2) {
      throw UsageError(fmt::format(
          "the dataset has {} examples; a plan needs two at least, one to measure and one to judge", data.size()));
    }
    measure_ = every(data, 0, 2);
    judge_ = every(data, 1, 2);
    for (const NamedLayer& named : named_layers(network_)) {
      // The network is ours to change; named_layers only reads.
      if (named.layer->weights) layers_.push_back({named.path, const_cast<Layer*>(named.layer)});  // NOLINT
    }
    if (layers_.empty()) throw UsageError(fmt::format("{}: no layer has weights, so there is nothing to plan", path));
    choose_loss();
    set_budget();
  }

  PlanReport plan() {
    const auto start = std::chrono::steady_clock::now();
    PlanReport report;
    report.budget_bytes = budget_;
    report.memory_bytes = estimate(report);
    measure_all();
    std::vector<std::size_t> choices = allocate(options_of_layers_, budget_).value();
    judge(choices, report);
    describe(choices, report);
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  }

 private:
  struct PlannedLayer {
    std::string path;
    Layer* layer;
    std::uint64_t weights() const { return layer->weights->count(); }
  };

  /// Gives a layer another type for the lifetime of this object.
  class LayerType {
   public:
    LayerType(Layer& layer, DType dtype) : layer_(layer), before_(layer.config) {
      layer.config.dtype = dtype;
      if (is_scaled(dtype)) {
        layer.config.granularity = Granularity::tensor;
        layer.config.group = 0;
      }
    }
    LayerType(const LayerType&) = delete;
    LayerType& operator=(const LayerType&) = delete;
    ~LayerType() { layer_.config = before_; }

   private:
    Layer& layer_;
    LayerConfig before_;
  };

  void choose_loss() {
    const Tensor<float> output = network_.forward(examples(measure_.x, 0, 1));
    const Tensor<float> target = examples(measure_.y, 0, 1);
    const std::size_t cols = output.shape().last();
    const bool by_class = cols > 1 && target.size() * cols == output.size();
    if (!by_class && target.size() != output.size()) {
      throw ShapeError(fmt::format("the network answers with {}, and targets are {}", output.shape().to_string(),
                                   target.shape().to_string()));
    }
    loss_.kind = by_class ? LossKind::cross_entropy_logits : LossKind::mse;
    classes_ = by_class || (measure_.y.shape().rank() > 1 && is_one_hot(measure_.y));
  }

  void set_budget() {
    types_ = options_.types;
    if (types_.empty()) {
      for (const DTypeInfo& info : kDTypes) types_.emplace_back(info.id);
    }
    for (const Format type : types_) {
      if (!convert::can_hold(FileForm::checkpoint, type)) {
        throw UsageError(fmt::format("{}: layers of networks hold the 21 dtypes, and no blocks", type.name()));
      }
    }
    // Of equal costs the allocation takes the first, so the smallest comes first.
    std::ranges::stable_sort(types_, [](Format a, Format b) { return a.bits() < b.bits(); });
    std::uint64_t weights = 0;
    for (const PlannedLayer& planned : layers_) {
      weights += planned.weights();
      std::vector<StoredOption>& options = options_of_layers_.emplace_back();
      for (const Format type : types_) options.push_back({layer_bytes(*planned.layer, type), 0});
    }
    budget_ = budget_bytes(options_, weights, 0);
    require_budget(budget_, smallest_size(options_of_layers_), weights, 0);
  }

  double loss_on(const Dataset& data) {
    double sum = 0;
    for (std::size_t first = 0; first < data.size(); first += options_.batch) {
      const std::size_t count = std::min(options_.batch, data.size() - first);
      const Tensor<float> output = network_.forward(examples(data.x, first, count));
      sum += evaluate_loss(loss_, output, examples(data.y, first, count)) * static_cast<double>(count);
    }
    return sum / static_cast<double>(data.size());
  }

  PlanQuality quality(double original_loss) {
    PlanQuality quality;
    quality.level = loss_on(judge_);
    quality.added = quality.level - original_loss;
    if (classes_) quality.accuracy = accuracy(network_, judge_, options_.batch);
    return quality;
  }

  std::uint64_t estimate(PlanReport& report) {
    const auto start = std::chrono::steady_clock::now();
    original_loss_ = loss_on(measure_);
    const double once = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.original = quality(loss_on(judge_));
    PlanEstimate estimate;
    estimate.measurements = layers_.size() * types_.size();
    estimate.seconds = once * static_cast<double>(estimate.measurements + 2 * types_.size() + 2);
    std::uint64_t weights = 0;
    for (const PlannedLayer& planned : layers_) weights += planned.weights();
    // The master, and a version of each type tried.
    for (const Format type : types_) estimate.memory_bytes += packed_bytes(type, weights);
    estimate.memory_bytes += (weights + measure_.x.size() + judge_.x.size()) * sizeof(float);
    if (options_.on_estimate) options_.on_estimate(estimate);
    return estimate.memory_bytes;
  }

  void measure_all() {
    std::size_t done = 0;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      for (std::size_t type = 0; type < types_.size(); ++type) {
        const LayerType changed(*layers_[i].layer, types_[type].dtype());
        const double added = loss_on(measure_) - original_loss_;
        // A lower loss after rounding is luck.
        options_of_layers_[i][type].cost = std::isfinite(added) ? std::max(added, 0.0) : kHopeless;
        if (options_.progress) options_.progress("measuring types", ++done, layers_.size() * types_.size());
      }
    }
  }

  PlanQuality measure(const std::vector<std::size_t>& choices, double original_loss) {
    std::vector<std::unique_ptr<LayerType>> changed;
    for (std::size_t i = 0; i < choices.size(); ++i) {
      changed.push_back(std::make_unique<LayerType>(*layers_[i].layer, types_[choices[i]].dtype()));
    }
    return quality(original_loss);
  }

  void judge(std::vector<std::size_t>& choices, PlanReport& report) {
    const double original = report.original.level;
    report.measured = measure(choices, original);
    std::vector<std::size_t> best;
    for (std::size_t type = 0; type < types_.size(); ++type) {
      const std::vector<std::size_t> single(layers_.size(), type);
      if (bytes_of(single) > budget_) continue;
      const PlanQuality quality = measure(single, original);
      const double level = std::isfinite(quality.level) ? quality.level : kHopeless;
      if (!best.empty() && level >= report.uniform.level) continue;
      best = single;
      report.uniform = quality;
      report.uniform.level = level;
      report.uniform_type = types_[type];
      report.uniform_bytes = bytes_of(single);
    }
    if (!best.empty() && !(report.measured.level < report.uniform.level)) {
      choices = best;
      report.measured = report.uniform;
      report.kept_uniform = true;
    }
  }

  std::uint64_t bytes_of(const std::vector<std::size_t>& choices) const {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < choices.size(); ++i) bytes += options_of_layers_[i][choices[i]].bytes;
    return bytes;
  }

  void describe(const std::vector<std::size_t>& choices, PlanReport& report) const {
    report.bytes = bytes_of(choices);
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const StoredOption& option = options_of_layers_[i][choices[i]];
      const Format type = types_[choices[i]];
      report.weights += layers_[i].weights();
      report.predicted += option.cost;
      report.tensors.push_back({layers_[i].path, type, layers_[i].weights(), option.bytes, option.cost});
      report.plan.tensors.emplace_back(layers_[i].path, type);
    }
  }

  const PlanOptions& options_;
  Network network_;
  Dataset measure_, judge_;
  std::vector<PlannedLayer> layers_;
  std::vector<Format> types_;
  std::vector<std::vector<StoredOption>> options_of_layers_;
  std::uint64_t budget_ = 0;
  Loss loss_;
  bool classes_ = false;
  double original_loss_ = 0;
};

}  // namespace

PlanReport plan_network(const std::string& model, const Dataset& data, const std::string& data_name,
                        const PlanOptions& options) {
  PlanReport report = NetworkPlanner(model, data, options).plan();
  report.plan.facts = plan_facts(report, model, data_name, options);
  return report;
}

}  // namespace imago
