#pragma once

#include <memory>
#include <string>
#include <vector>

#include "network/cuda/grid_run.h"
#include "train/cuda/kernels.h"
#include "train/stepper.h"

namespace imago::cuda {

/// Losses of tensors in device memory, and the scratch memory they need.
class DeviceLoss {
 public:
  explicit DeviceLoss(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  /// Queues the loss of `output` into *out (device memory) and its gradient, unless null. `host_target` has
  /// the values of `target`, for counting and checking classes. `loss` must stay until the stream was waited for.
  /// Throws as evaluate_loss.
  void queue(const Loss& loss, const layers::cuda::DeviceTensor& output, const layers::cuda::DeviceTensor& target,
             const Tensor<float>& host_target, layers::cuda::DeviceTensor* gradient, double* out, Stream& stream);

 private:
  std::shared_ptr<Device> device_;
  Array<double> partials_;
  Array<float> mask_;
  Array<int> starts_;
  std::vector<int> host_starts_;
};

/// Steps on a CUDA device. Masters, gradients, moments and, where it fits, the dataset lie in its memory.
class GpuStepper final : public Stepper {
 public:
  GpuStepper(Network& network, const Dataset& data, const OptimizerOptions& options, std::shared_ptr<Device> device);

  Result step(std::span<const std::size_t> examples, const Loss& loss, float rate, std::uint64_t seed) override;
  double evaluate(std::span<const std::size_t> examples, const Loss& loss) override;
  void sync_to_host() override;
  std::uint64_t steps() const override { return steps_; }
  std::vector<Optimizer::Moment> save() override;
  void restore(std::uint64_t steps, std::vector<Optimizer::Moment> moments) override;

  /// For tests: forward, loss and gradients of the examples without an update; the gradients of all weight arrays in
  /// the order of the walk over the layers.
  std::vector<std::vector<float>> gradients(std::span<const std::size_t> examples, const Loss& loss);

 private:
  /// One weight array and what the optimizer remembers of it.
  struct Slot {
    std::string name;
    Layer* layer;
    layers::cuda::TrainedLayer* trained;
    Array<float> moments[2];
  };

  void make_slots(Layer& layer, const std::string& path);
  void load(std::span<const std::size_t> examples);
  void load_part(std::span<const std::size_t> examples, const Tensor<float>& from, const Array<float>& resident,
                 Tensor<float>& host, layers::cuda::DeviceTensor& to);
  void round_all();
  void queue_forward(const Loss& loss, layers::cuda::DeviceTensor* gradient);
  void queue_backward();
  void queue_squares();
  void queue_update(float rate);
  StepFigures figures();

  Network& network_;
  const Dataset& data_;
  OptimizerOptions options_;
  std::shared_ptr<Device> device_;
  layers::cuda::TrainedLayers trained_;
  network::cuda::GridRun run_;
  DeviceLoss loss_;
  std::vector<Slot> slots_;
  std::uint64_t steps_ = 0;
  bool is_synced_ = true;    // the network has the weights
  bool is_rounded_ = false;  // Wq are those of the masters

  Array<float> all_x_, all_y_;  // the dataset; empty where it does not fit
  std::vector<std::int32_t> host_ids_;
  Array<std::int32_t> ids_;
  Tensor<float> host_x_, host_y_;  // of this batch; x only where the dataset is not resident
  layers::cuda::DeviceTensor x_, y_, grad_output_;
  Array<double> partials_;  // of squares and scales
  Array<StepFigures> figures_;
  PinnedMemory host_figures_;
};

}  // namespace imago::cuda
