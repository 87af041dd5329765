// post = x + skip where a skip of the same size is given, else x. Backward leaves grad_skip of the skip's shape, or
// without values where no skip was used.

#include "kernels/ops.h"
#include "layers/settings.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

bool uses(const Tensor<float>* skip, const Tensor<float>& x) { return skip != nullptr && skip->size() == x.size(); }

void copy(const Tensor<float>& from, const Shape& shape, Tensor<float>& to) {
  to.resize(shape);
  kernels::copy(from.values(), to.values());
}

void forward(Layer&, const Tensor<float>& x, const Tensor<float>* skip, LayerState& state, Run&) {
  copy(x, x.shape(), state.post);
  if (uses(skip, x)) kernels::add(skip->values(), state.post.values());
}

void backward(Layer&, const Tensor<float>& x, const Tensor<float>* skip, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient&, Run&) {
  copy(grad_output, x.shape(), state.grad_input);
  if (uses(skip, x)) {
    copy(grad_output, skip->shape(), state.grad_skip);
  } else if (state.grad_skip.size() != 0) {
    state.grad_skip.resize({0});
  }
}

}  // namespace

const LayerFunctions kResidual{LayerType::residual, no_weights, nullptr, forward, backward};

}  // namespace imago::layers
