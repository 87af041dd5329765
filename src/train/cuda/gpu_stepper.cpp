#include "train/cuda/gpu_stepper.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "imago/error.h"
#include "kernels/cuda/ops.h"
#include "layers/layer_functions.h"
#include "network/network_state.h"
#include "quant/scheme.h"
#include "train/batches.h"
#include "train/learned_scale.h"
#include "train/loss.h"
#include "train/update.h"

namespace imago::cuda {

namespace {

/// A dataset that takes more than a quarter of the free memory stays on the host, and each batch is uploaded: weights
/// and activations need memory too.
bool fits(const Dataset& data, const Device& device) {
  for (const DeviceInfo& info : accelerators()) {
    if (info.name == device.name()) return (data.x.size() + data.y.size()) * sizeof(float) <= info.free_memory / 4;
  }
  return false;
}

bool is_rounded_type(Format dtype) { return dtype != DType::float32 && dtype != DType::float64; }

std::size_t scale_group_of(const Layer& layer) {
  const Scheme scheme = layer.config.scheme();
  const WeightStore& weights = *layer.weights;
  switch (scheme.granularity) {
    case Granularity::tensor: return weights.count();
    case Granularity::row: return weights.cols();
    case Granularity::group: return static_cast<std::size_t>(scheme.group);
  }
  return weights.count();
}

/// 0: derived. A scale of 0 that was given acts as 1.
float explicit_scale_of(const Layer& layer) {
  if (layer.config.granularity != Granularity::tensor) return 0;
  const std::optional<float> scale = layer.weights->explicit_scale(layer.config.dtype.dtype());
  return !scale ? 0.0f : *scale == 0 ? 1.0f : *scale;
}

}  // namespace

void DeviceLoss::queue(const Loss& loss, const layers::cuda::DeviceTensor& output,
                       const layers::cuda::DeviceTensor& target, const Tensor<float>& host_target,
                       layers::cuda::DeviceTensor* gradient, double* out, Stream& stream) {
  check_sizes(loss, output.shape(), target.shape());
  if (gradient != nullptr) gradient->resize(*device_, output.shape());
  float* const slopes = gradient == nullptr ? nullptr : gradient->data();
  const std::size_t cols = output.shape().last(), rows = output.size() / cols;
  const ValueLoss values{output.data(), target.data(), slopes, output.size(), nullptr, out};
  const auto partials = [&](std::size_t count) {
    partials_.reserve(*device_, count);
    return partials_.data();
  };
  switch (loss.kind) {
    case LossKind::mse:
    case LossKind::cross_entropy: {
      ValueLoss args = values;
      args.partials = partials(partial_count(output.size()));
      return loss.kind == LossKind::mse ? mean_squared_error(args, stream) : cross_entropy(args, stream);
    }
    case LossKind::cross_entropy_logits: {
      const bool by_class = target.size() == rows;
      return cross_entropy_of_logits({.output = output.data(),
                                      .target = target.data(),
                                      .gradient = slopes,
                                      .rows = rows,
                                      .cols = cols,
                                      .by_class = by_class,
                                      .scored = by_class ? count_scored(host_target.values(), cols) : rows,
                                      .row_losses = partials(rows),
                                      .out = out},
                                     stream);
    }
    case LossKind::multi_head_softmax_ce: {
      check_heads(loss, rows, cols);
      host_starts_.assign(1, 0);
      for (const int head : loss.heads) host_starts_.push_back(host_starts_.back() + head);
      starts_.reserve(*device_, host_starts_.size());
      stream.copy_in(std::as_bytes(std::span(host_starts_)), starts_.data());
      mask_.reserve(*device_, loss.mask.size());
      stream.copy_in(std::as_bytes(std::span(loss.mask)), mask_.data());
      return multi_head_entropy({.output = output.data(),
                                 .target = target.data(),
                                 .gradient = slopes,
                                 .rows = rows,
                                 .cols = cols,
                                 .starts = starts_.data(),
                                 .heads = loss.heads.size(),
                                 .mask = loss.mask.empty() ? nullptr : mask_.data(),
                                 .head_losses = partials(rows * loss.heads.size()),
                                 .out = out},
                                stream);
    }
  }
}

GpuStepper::GpuStepper(Network& network, const Dataset& data, const OptimizerOptions& options,
                       std::shared_ptr<Device> device)
    : network_(network),
      data_(data),
      options_(options),
      device_(std::move(device)),
      run_(device_, &trained_),
      loss_(device_),
      figures_(*device_, 1),
      host_figures_(sizeof(StepFigures)) {
  check_optimizer(options);
  if (options.learn_scales.value_or(false))
    throw UnsupportedError("scales are not learned on a GPU: train this network on the host");
  network.check();
  const std::span<Layer> layers = network.layers();
  for (const Layer& layer : layers) layers::cuda::check_trainable(layer);
  for (std::size_t i = 0; i < layers.size(); ++i) make_slots(layers[i], fmt::format("layers.{}", i));
  if (!fits(data, *device_)) return;
  all_x_ = Array<float>(*device_, data.x.size());
  all_y_ = Array<float>(*device_, data.y.size());
  device_->upload(std::as_bytes(data.x.values()), all_x_.buffer(), 0);
  device_->upload(std::as_bytes(data.y.values()), all_y_.buffer(), 0);
}

void GpuStepper::make_slots(Layer& layer, const std::string& path) {
  if (layer.weights) {
    layers::cuda::TrainedLayer& trained = trained_[&layer];
    const std::size_t count = layer.weights->count();
    if (learns_scale(options_, layer.config)) start_scale(*layer.weights, layer.config.dtype.dtype());
    trained.layer = &layer;
    trained.master = Array<float>(*device_, count);
    trained.gradient = Array<float>(*device_, count);
    device_->upload(std::as_bytes(layer.weights->master()), trained.master.buffer(), 0);
    if (is_rounded_type(layer.config.dtype)) {
      trained.rounded = Array<float>(*device_, count);
      partials_.reserve(*device_, rounding_partials(count, scale_group_of(layer)));
    }
    slots_.push_back({path, &layer, &trained, {}});
    for (int i = 0; i < moment_count(options_.kind); ++i) slots_.back().moments[i] = Array<float>(*device_, count);
  }
  std::size_t child = 0;
  layers::for_each_child(layer, [&](Layer& inner) { make_slots(inner, fmt::format("{}.{}", path, child++)); });
}

void GpuStepper::load_part(std::span<const std::size_t> examples, const Tensor<float>& from,
                           const Array<float>& resident, Tensor<float>& host, layers::cuda::DeviceTensor& to) {
  std::vector<std::size_t> extents(from.shape().extents().begin(), from.shape().extents().end());
  extents[0] = examples.size();
  to.resize(*device_, Shape(std::move(extents)));
  if (resident.size() == 0) {
    gather_examples(from, examples, host);
    run_.stream().copy_in(std::as_bytes(host.values()), to.data());
    return;
  }
  kernels::cuda::gather_rows(resident.data(), ids_.data(), examples.size(), from.size() / from.shape()[0], to.data(),
                             run_.stream());
}

void GpuStepper::load(std::span<const std::size_t> examples) {
  host_ids_.assign(examples.begin(), examples.end());
  ids_.reserve(*device_, host_ids_.size());
  run_.stream().copy_in(std::as_bytes(std::span(host_ids_)), ids_.data());
  load_part(examples, data_.x, all_x_, host_x_, x_);
  gather_examples(data_.y, examples, host_y_);  // DeviceLoss checks its classes
  load_part(examples, data_.y, all_y_, host_y_, y_);
}

void GpuStepper::round_all() {
  if (is_rounded_) return;
  for (Slot& slot : slots_) {
    if (slot.trained->rounded.size() == 0) continue;
    round_weights({.master = slot.trained->master.data(),
                   .rounded = slot.trained->rounded.data(),
                   .count = slot.trained->master.size(),
                   .dtype = slot.layer->config.dtype.dtype(),
                   .scale_group = scale_group_of(*slot.layer),
                   .explicit_scale = explicit_scale_of(*slot.layer),
                   .explicit_zero = slot.layer->weights->zero_point(slot.layer->config.dtype.dtype()),
                   .partials = partials_.data()},
                  run_.stream());
  }
  is_rounded_ = true;
}

void GpuStepper::queue_forward(const Loss& loss, layers::cuda::DeviceTensor* gradient) {
  round_all();
  run_.host().grid = &NetworkAccess::grid(network_);
  const layers::cuda::DeviceTensor& output = run_.forward(network_.layers(), NetworkAccess::states(network_), x_);
  loss_.queue(loss, output, y_, host_y_, gradient, &figures_.data()->loss, run_.stream());
}

void GpuStepper::queue_backward() {
  for (Slot& slot : slots_) {
    run_.stream().fill_zero(slot.trained->gradient.data(), slot.trained->gradient.size() * sizeof(float));
  }
  run_.backward(network_.layers(), grad_output_, false);
}

void GpuStepper::queue_squares() {
  std::size_t count = 0;
  for (const Slot& slot : slots_) count += square_partials(slot.trained->gradient.size());
  partials_.reserve(*device_, count);
  const float bound = options_.clip_element > 0 ? options_.clip_element : std::numeric_limits<float>::infinity();
  std::size_t first = 0;
  for (const Slot& slot : slots_) {
    const Array<float>& gradient = slot.trained->gradient;
    clipped_squares(gradient.data(), gradient.size(), bound, partials_.data() + first, run_.stream());
    first += square_partials(gradient.size());
  }
  sum_values(partials_.data(), count, 1, &figures_.data()->squares, run_.stream());
}

void GpuStepper::queue_update(float rate) {
  const UpdateRule rule(options_, steps_ + 1, static_cast<double>(rate));
  for (Slot& slot : slots_) {
    const bool not_negative = slot.layer->weights->loses_negatives(slot.layer->config.scheme());
    kernels::UpdateArgs args = rule.arguments(not_negative);
    args.weights = slot.trained->master.data();
    args.gradient = slot.trained->gradient.data();
    args.moment1 = slot.moments[0].data();
    args.moment2 = slot.moments[1].data();
    args.count = slot.trained->master.size();
    update(args, figures_.data(), options_.clip_norm, run_.stream());
  }
}

StepFigures GpuStepper::figures() {
  run_.stream().copy_out(figures_.data(), host_figures_.bytes());
  run_.wait();
  StepFigures result;
  std::memcpy(&result, host_figures_.bytes().data(), sizeof result);
  return result;
}

Stepper::Result GpuStepper::step(std::span<const std::size_t> examples, const Loss& loss, float rate,
                                 std::uint64_t seed) {
  if (!std::isfinite(rate)) throw UsageError(fmt::format("a learning rate of {}", rate));
  run_.host().seed = seed;
  load(examples);
  queue_forward(loss, &grad_output_);
  queue_backward();
  queue_squares();
  queue_update(rate);
  // One wait per step: the device decides whether the weights change, and the figures tell the host.
  const StepFigures found = figures();
  const bool updated = std::isfinite(found.loss) && std::isfinite(found.squares);
  if (updated) {
    ++steps_;
    is_synced_ = false;
    is_rounded_ = false;
  }
  return {found.loss, updated};
}

double GpuStepper::evaluate(std::span<const std::size_t> examples, const Loss& loss) {
  load(examples);
  queue_forward(loss, nullptr);
  return figures().loss;
}

void GpuStepper::sync_to_host() {
  if (is_synced_) return;
  for (const Slot& slot : slots_) {
    device_->download(slot.trained->master.buffer(), 0, std::as_writable_bytes(slot.layer->weights->edit_master()));
  }
  is_synced_ = true;
}

std::vector<std::vector<float>> GpuStepper::gradients(std::span<const std::size_t> examples, const Loss& loss) {
  load(examples);
  queue_forward(loss, &grad_output_);
  queue_backward();
  run_.wait();
  std::vector<std::vector<float>> found;
  for (const Slot& slot : slots_) {
    found.emplace_back(slot.trained->gradient.size());
    device_->download(slot.trained->gradient.buffer(), 0, std::as_writable_bytes(std::span(found.back())));
  }
  return found;
}

// Moments are named as Optimizer names them, so that a run can go on on another device.

namespace {

std::string moment_name(const std::string& slot, OptimizerKind kind, int index) {
  return fmt::format("{}.{}", slot, kind == OptimizerKind::momentum ? "velocity" : index == 0 ? "mean" : "square");
}

}  // namespace

std::vector<Optimizer::Moment> GpuStepper::save() {
  std::vector<Optimizer::Moment> saved;
  if (steps_ == 0) return saved;
  for (Slot& slot : slots_) {
    for (int i = 0; i < moment_count(options_.kind); ++i) {
      std::vector<float> values(slot.moments[i].size());
      device_->download(slot.moments[i].buffer(), 0, std::as_writable_bytes(std::span(values)));
      saved.push_back({moment_name(slot.name, options_.kind, i), std::move(values)});
    }
  }
  return saved;
}

void GpuStepper::restore(std::uint64_t steps, std::vector<Optimizer::Moment> moments) {
  Optimizer(network_, options_).restore(steps, moments);  // throws if they do not fit
  std::size_t used = 0;
  for (Slot& slot : slots_) {
    for (int i = 0; i < moment_count(options_.kind); ++i) {
      if (used == moments.size() || moments[used].name != moment_name(slot.name, options_.kind, i)) continue;
      device_->upload(std::as_bytes(std::span(moments[used++].values)), slot.moments[i].buffer(), 0);
    }
  }
  steps_ = steps;
}

}  // namespace imago::cuda

namespace imago {

std::unique_ptr<Stepper> make_device_stepper(Network& network, const Dataset& data, const OptimizerOptions& options,
                                             std::shared_ptr<Device> device) {
  return std::make_unique<cuda::GpuStepper>(network, data, options, std::move(device));
}

}  // namespace imago
