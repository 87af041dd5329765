#pragma once

// The layers of a grid one after the other on a CUDA device, forward and backward: what Network::forward and backward
// are on the host.

#include <memory>
#include <span>
#include <vector>

#include "layers/cuda/run.h"
#include "network/network_state.h"

namespace imago::network::cuda {

using layers::cuda::DeviceState;
using layers::cuda::DeviceTensor;

class GridRun final : public DeviceRunner {
 public:
  /// With `trained`, layers use those weights, and `backward` may follow a `forward`.
  explicit GridRun(std::shared_ptr<Device> device, layers::cuda::TrainedLayers* trained = nullptr);
  GridRun(const GridRun&) = delete;  // the run refers to the stream beside it
  GridRun& operator=(const GridRun&) = delete;

  imago::cuda::Stream& stream() noexcept { return stream_; }
  const std::shared_ptr<Device>& device() const override { return run_.device; }
  layers::Run& host() noexcept { return run_.host; }

  void forward(std::span<Layer> grid, std::span<layers::LayerState> states, layers::Run& run, const Tensor<float>& x,
               Tensor<float>& result) override;
  /// Queues the enabled layers on `x`, which must stay until `backward` is done. `states`: of layers that run on the
  /// host.
  const DeviceTensor& forward(std::span<Layer> grid, std::span<layers::LayerState> states, const DeviceTensor& x);
  /// Queues the gradients of the last forward: those of the weights into `trained`, and that of the input if it is
  /// asked for (else null).
  const DeviceTensor* backward(std::span<Layer> grid, const DeviceTensor& grad_output, bool input_gradient);
  /// Waits for the stream and releases the weights that were in use.
  void wait();

 private:
  imago::cuda::Stream stream_;
  kernels::cuda::ProductScratch products_;
  layers::cuda::DeviceRun run_;
  std::vector<DeviceState> states_;
  DeviceTensor host_x_;              // the input of the forward that takes host tensors
  const DeviceTensor* x_ = nullptr;  // the input of the last forward
};

}  // namespace imago::network::cuda
