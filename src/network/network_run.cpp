#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"
#include "imago/network.h"
#include "kernels/ops.h"
#include "network/network_state.h"
#include "network/walk.h"

namespace imago {

namespace network {

bool fits(const LayerGradient& gradient, const Layer& layer) {
  if (gradient.weights.size() != (layer.weights ? layer.weights->count() : 0)) return false;
  std::size_t index = 0;
  bool all = true;
  for_each_child(layer, [&](const Layer& child) {
    all = all && index < gradient.children.size() && fits(gradient.children[index], child);
    ++index;
  });
  return all && index == gradient.children.size();
}

}  // namespace network

namespace {

void clear(LayerGradient& gradient) {
  kernels::clear(gradient.weights);
  for (LayerGradient& child : gradient.children) clear(child);
}

/// Gradients of layers that changed since are worth nothing: they start again at zero.
void fit(LayerGradient& gradient, const Layer& layer) {
  if (!network::fits(gradient, layer)) gradient = layers::zero_gradient(layer);
}

}  // namespace

const Tensor<float>& Network::State::run(const Tensor<float>& x, bool for_backward) {
  can_go_back = false;
  const Tensor<float>* current = &x;
  // The caller may feed a result back, and layers write where it lies.
  if (for_backward || &x == result) {
    input.resize(x.shape());
    kernels::copy(x.values(), input.values());
    current = &input;
  }
  layers::Run run{this, for_backward, run_seed, observer};
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (grid[i].config.is_disabled) continue;
    layers::forward_layer(grid[i], *current, nullptr, states[i], run);
    current = &states[i].post;
  }
  run_seed = run.seed;
  if (current == &x) {  // no layer is enabled
    input = x;
    current = &input;
  }
  result = current;
  can_go_back = for_backward;
  return *result;
}

void Network::run_on(std::shared_ptr<Device> device) {
  if (device == nullptr || device->is_host()) {
    state_->device_runner.reset();
  } else if (state_->device_runner == nullptr || state_->device_runner->device() != device) {
    state_->device_runner = network::make_device_runner(std::move(device));
  }
}

const Tensor<float>& Network::forward(const Tensor<float>& x) {
  if (!state_->is_checked) check();
  state_->is_checked = true;
  if (state_->device_runner == nullptr || state_->observer != nullptr) return state_->run(x, false);
  layers::Run run{state_.get(), false, state_->run_seed};
  state_->can_go_back = false;
  state_->device_runner->forward(state_->grid, state_->states, run, x, state_->device_result);
  state_->run_seed = run.seed;
  state_->result = &state_->device_result;
  return state_->device_result;
}

const Tensor<float>& Network::forward_training(const Tensor<float>& x) {
  if (!state_->is_checked) check();
  state_->is_checked = true;
  return state_->run(x, true);
}

const Tensor<float>& Network::backward(const Tensor<float>& grad_output, bool input_gradient) {
  State& state = *state_;
  if (!state.can_go_back) throw UsageError("backward needs a forward_training before it");
  if (!(grad_output.shape() == state.result->shape())) {
    throw ShapeError(fmt::format("a gradient of shape {} for a result of shape {}", grad_output.shape().to_string(),
                                 state.result->shape().to_string()));
  }
  // All before any: a remote link adds to layers that are still to come.
  for (std::size_t i = 0; i < state.grid.size(); ++i) fit(state.gradients[i], state.grid[i]);

  layers::Run run{&state, true, state.run_seed};
  const Tensor<float>* grad = &grad_output;
  for (std::size_t i = state.grid.size(); i-- > 0;) {
    if (state.grid[i].config.is_disabled) continue;
    std::size_t before = i;
    while (before > 0 && state.grid[before - 1].config.is_disabled) --before;
    state.states[i].needs_grad_input = input_gradient || before > 0;
    const Tensor<float>& x = before == 0 ? state.input : state.states[before - 1].post;
    layers::backward_layer(state.grid[i], x, nullptr, *grad, state.states[i], state.gradients[i], run);
    grad = &state.states[i].grad_input;
  }
  if (grad == &grad_output) {
    state.states[0].grad_input = grad_output;
    grad = &state.states[0].grad_input;
  }
  return *grad;
}

std::span<LayerGradient> Network::gradients() noexcept { return state_->gradients; }

void Network::clear_gradients() {
  for (std::size_t i = 0; i < state_->grid.size(); ++i) {
    fit(state_->gradients[i], state_->grid[i]);
    clear(state_->gradients[i]);
  }
}

}  // namespace imago
