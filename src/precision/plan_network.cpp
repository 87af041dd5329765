// Chooses a type for each layer of a network. Networks are small compared with language models: every type of every
// layer is measured, and nothing is estimated.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "precision/layer_types.h"
#include "precision/measures.h"
#include "precision/planner.h"
#include "train/batches.h"

namespace imago {

namespace {

using namespace precision;

/// Every second example from `first` on, so that each half covers all of a sorted file.
Dataset half(const Dataset& data, std::size_t first) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = first; i < data.size(); i += 2) chosen.push_back(i);
  Dataset some;
  gather_examples(data.x, chosen, some.x);
  gather_examples(data.y, chosen, some.y);
  return some;
}

class NetworkPlanner final : public Planner {
 public:
  NetworkPlanner(const std::string& path, const Dataset& data, const PlanOptions& options)
      : Planner(options, &PlanQuality::level), network_(load_network(path)), layers_(network_) {
    check_dataset(data);
    if (!options.calibration.empty() || options.rounding.value_or(Rounding::nearest) != Rounding::nearest) {
      throw UsageError(
          fmt::format("{}: plans of networks are made with plain rounding; leave the calibration out", path));
    }
    if (data.size() < 2) {
      throw UsageError(fmt::format(
          "the dataset has {} examples; a plan needs two at least, one to measure and one to judge", data.size()));
    }
    if (layers_.all().empty()) {
      throw UsageError(fmt::format("{}: no layer has weights, so there is nothing to plan", path));
    }
    measure_ = half(data, 0);
    judge_ = half(data, 1);
    choose_loss();
    choose_types();
  }

 private:
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

  void choose_types() {
    types_ = options_.types;
    if (types_.empty()) {
      for (const DTypeInfo& info : kDTypes) types_.emplace_back(info.id);
    }
    // The allocation takes the first of equal costs, so the smallest comes first.
    std::ranges::stable_sort(types_, [](Format a, Format b) { return a.bits() < b.bits(); });
    for (const LayerTypes::Entry& entry : layers_.all()) {
      tensors_.push_back({entry.path, entry.layer->weights->count()});
      std::vector<TypeOption>& options = type_options_.emplace_back();
      for (const Format type : types_) {
        if (fitting_type(type, entry.layer->weights->shape()) != type) continue;
        options.push_back({.bytes = layer_bytes(*entry.layer, type), .type = type});
      }
      if (options.empty()) options.push_back({.bytes = layer_bytes(*entry.layer), .type = entry.before.dtype});
      options_count_ += options.size();
    }
    set_budget(0);
    require_budget();
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

  PlanEstimate estimate() override {
    const Stopwatch watch;
    original_loss_ = loss_on(measure_);
    const double once = watch.seconds();
    PlanEstimate estimate;
    estimate.measurements = options_count_;
    estimate.seconds = once * static_cast<double>(estimate.measurements + 2 * types_.size() + 2);
    // The master, and a version of each type tried.
    for (const std::vector<TypeOption>& options : type_options_) {
      for (const TypeOption& option : options) estimate.memory_bytes += option.bytes;
    }
    estimate.memory_bytes += (weights() + measure_.x.size() + judge_.x.size()) * sizeof(float);
    return estimate;
  }

  void measure_types() override {
    std::size_t done = 0;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      for (TypeOption& option : type_options_[i]) {
        layers_.set(layers_.all()[i], option.type);
        const double added = loss_on(measure_) - original_loss_;
        // A lower loss after rounding is luck.
        option.cost = std::isfinite(added) ? std::max(added, 0.0) : kHopeless;
        progress("measuring types", ++done, options_count_);
      }
      layers_.restore();
    }
  }

  void begin_judging(PlanReport& report) override {
    original_loss_ = loss_on(judge_);
    report.original = quality();
  }

  PlanQuality judge(const Choices& choices) override {
    for (std::size_t i = 0; i < choices.size(); ++i) {
      layers_.set(layers_.all()[i], type_options_[i][choices[i]].type);
    }
    const PlanQuality found = quality();
    layers_.restore();
    return found;
  }

  PlanQuality quality() {
    PlanQuality quality;
    quality.level = loss_on(judge_);
    quality.added = quality.level - original_loss_;
    if (classes_) quality.accuracy = accuracy(network_, judge_, options_.batch);
    return quality;
  }

  Network network_;
  LayerTypes layers_;
  Dataset measure_, judge_;
  Loss loss_;
  bool classes_ = false;
  std::size_t options_count_ = 0;
  double original_loss_ = 0;  ///< on the data that qualities are about
};

}  // namespace

PlanReport plan_network(const std::string& model, const Dataset& data, const std::string& data_name,
                        const PlanOptions& options) {
  return NetworkPlanner(model, data, options).plan(model, data_name);
}

}  // namespace imago
