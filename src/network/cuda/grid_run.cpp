#include "network/cuda/grid_run.h"

#include <utility>

namespace imago::network {

namespace cuda {

GridRun::GridRun(std::shared_ptr<Device> device, layers::cuda::TrainedLayers* trained)
    : stream_(device),
      products_(device),
      run_{.device = device, .stream = stream_, .products = products_, .trained = trained} {
  run_.host.for_backward = trained != nullptr;
}

const DeviceTensor& GridRun::forward(std::span<Layer> grid, std::span<layers::LayerState> states,
                                     const DeviceTensor& x) {
  if (states_.size() != grid.size()) states_.resize(grid.size());
  x_ = &x;
  const DeviceTensor* current = &x;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (grid[i].config.is_disabled) continue;
    layers::cuda::forward_layer(grid[i], *current, nullptr, states_[i], states[i], run_);
    current = &states_[i].post;
  }
  return *current;
}

const DeviceTensor* GridRun::backward(std::span<Layer> grid, const DeviceTensor& grad_output, bool input_gradient) {
  const DeviceTensor* grad = &grad_output;
  for (std::size_t i = grid.size(); i-- > 0;) {
    if (grid[i].config.is_disabled) continue;
    std::size_t before = i;
    while (before > 0 && grid[before - 1].config.is_disabled) --before;
    states_[i].needs_grad_input = input_gradient || before > 0;
    const DeviceTensor& x = before == 0 ? *x_ : states_[before - 1].post;
    layers::cuda::backward_layer(grid[i], x, nullptr, *grad, states_[i], run_);
    grad = &states_[i].grad_input;
  }
  return input_gradient ? grad : nullptr;
}

void GridRun::wait() {
  stream_.wait();
  run_.held.clear();
}

void GridRun::forward(std::span<Layer> grid, std::span<layers::LayerState> states, layers::Run& run,
                      const Tensor<float>& x, Tensor<float>& result) {
  run_.host = run;
  host_x_.resize(*run_.device, x.shape());
  stream_.copy_in(std::as_bytes(x.values()), host_x_.data());
  const DeviceTensor& post = forward(grid, states, host_x_);
  const Shape shape = post.shape();
  stream_.wait();  // `x` may be `result`
  result.resize(shape);
  stream_.copy_out(post.data(), std::as_writable_bytes(result.values()));
  wait();
  run = run_.host;
}

}  // namespace cuda

std::unique_ptr<DeviceRunner> make_device_runner(std::shared_ptr<Device> device) {
  return std::make_unique<cuda::GridRun>(std::move(device));
}

}  // namespace imago::network
