#pragma once

// The layers of a grid one after the other on a CUDA device, forward and backward: what Network::forward and backward
// are on the host.

#include <memory>
#include <span>
#include <vector>

#include "layers/cuda/run.h"

namespace imago::network::cuda {

using layers::cuda::DeviceState;
using layers::cuda::DeviceTensor;

class GridRun {
 public:
  /// With `trained`, weights are those, and `backward` may follow a `forward`.
  explicit GridRun(std::shared_ptr<Device> device, layers::cuda::TrainedLayers* trained = nullptr);
  GridRun(const GridRun&) = delete;  // the run refers to the stream beside it
  GridRun& operator=(const GridRun&) = delete;

  imago::cuda::Stream& stream() noexcept { return stream_; }
  const std::shared_ptr<Device>& device() const noexcept { return run_.device; }
  layers::Run& host() noexcept { return run_.host; }

  /// Queues the enabled layers on `x`, which must stay until `backward` is done. `host`: states of layers that run
  /// there.
  const DeviceTensor& forward(std::span<Layer> grid, std::span<layers::LayerState> host, const DeviceTensor& x);
  /// Queues the gradients of the last forward: weights' into `trained`, and the input's, where it is wanted.
  const DeviceTensor* backward(std::span<Layer> grid, const DeviceTensor& grad_output, bool input_gradient);
  /// Waits for all, and lets go of weights that were in use.
  void wait();

 private:
  imago::cuda::Stream stream_;
  kernels::cuda::ProductScratch products_;
  layers::cuda::DeviceRun run_;
  std::vector<DeviceState> states_;
  const DeviceTensor* x_ = nullptr;  // of the last forward
};

}  // namespace imago::network::cuda
