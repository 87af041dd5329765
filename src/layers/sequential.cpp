// Sequential, and Residual, which is meant to run inside it: post = x + skip where a skip of the same size is given,
// else x.

#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/children.h"

namespace imago::layers {

namespace {

bool leads_elsewhere(const Layer& child) { return child.config.is_remote_link && !child.config.is_disabled; }

Grid& grid_of(const Layer& child, Run& run) {
  if (run.grid == nullptr) throw UsageError(describe(child) + ": a remote link needs a network around it");
  return *run.grid;
}

template <class T>
void copy_as(const Tensor<T>& from, const Shape& shape, Tensor<T>& to) {
  to.resize(shape);
  kernels::copy(from.values(), to.values());
}

template <class T>
void add(const Tensor<T>& from, Tensor<T>& to) {
  kernels::add(from.values(), to.values());
}

}  // namespace

Layer& resolve(Layer& child, Run& run) {
  return leads_elsewhere(child) ? grid_of(child, run).layer(child.config.target) : child;
}

LayerGradient& resolve_gradient(const Layer& child, LayerGradient& own, Run& run) {
  return leads_elsewhere(child) ? grid_of(child, run).gradient(child.config.target) : own;
}

template <class T>
void copy_tensor(const Tensor<T>& from, Tensor<T>& to) {
  copy_as(from, from.shape(), to);
}

template void copy_tensor(const Tensor<float>&, Tensor<float>&);
template void copy_tensor(const Tensor<double>&, Tensor<double>&);

std::size_t enabled_before(Layer& layer, std::size_t index, Run& run) {
  while (index-- > 0) {
    if (!resolve(layer.sub_layers[index], run).config.is_disabled) return index;
  }
  return kNoLayer;
}

namespace {

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const auto forward_one = [&](Layer& sub_layer, std::size_t i, const Tensor<T>& input,
                               const Tensor<T>* skip) -> const Tensor<T>& {
    forward_layer(sub_layer, input, skip, state.children[i], run);
    return state.children[i].values<T>().post;
  };
  copy_tensor(walk_forward(layer, x, state, run, forward_one), state.values<T>().post);
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run& run) {
  const auto backward_one = [&](Layer& sub_layer, std::size_t i, const Tensor<float>& input, const Tensor<float>* skip,
                                const Tensor<float>& grad) {
    backward_layer(sub_layer, input, skip, grad, state.children[i],
                   resolve_gradient(layer.sub_layers[i], gradient.children[i], run), run);
  };
  copy_tensor(walk_backward(layer, x, grad_output, state, run, backward_one, add<float>), state.grad_input);
}

template <class T>
void residual_forward(Layer&, const Tensor<T>& x, const Tensor<T>* skip, LayerState& state, Run&) {
  Tensor<T>& post = state.values<T>().post;
  copy_tensor(x, post);
  if (uses_skip(skip, x)) add(*skip, post);
}

/// grad_skip is left without values where no skip was used.
void residual_backward(Layer&, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
                       LayerState& state, LayerGradient&, Run&) {
  copy_as(grad_output, x.shape(), state.grad_input);
  if (uses_skip(skip, x)) {
    copy_as(grad_output, skip->shape(), state.grad_skip);
  } else if (state.grad_skip.size() != 0) {
    state.grad_skip.resize({0});
  }
}

}  // namespace

const LayerFunctions kSequential{LayerType::sequential, no_weights, nullptr, forward<float>, forward<double>, backward};
const LayerFunctions kResidual{LayerType::residual,      no_weights,       nullptr, residual_forward<float>,
                               residual_forward<double>, residual_backward};

}  // namespace imago::layers
