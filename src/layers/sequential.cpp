// Sub-layers one after the other. Each sub-layer's result stays in its own state, which is also where the next one
// reads its input, so nothing is saved beside the children.

#include "kernels/ops.h"
#include "layers/children.h"
#include "layers/settings.h"
#include "layers/types.h"

namespace imago::layers {

namespace {

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

/// The last sub-layer before `index` that runs, or kNone.
std::size_t runs_before(Layer& layer, std::size_t index, Run& run) {
  while (index-- > 0) {
    if (!resolve(layer.sub_layers[index], run).config.is_disabled) return index;
  }
  return kNone;
}

/// What a sub-layer sees: the result of the one that ran before it, and as skip that one's own input.
struct Inputs {
  std::size_t before = kNone;
  const Tensor<float>* x = nullptr;
  const Tensor<float>* skip = nullptr;
};

Inputs inputs_of(Layer& layer, std::size_t index, const Tensor<float>& x, const LayerState& state, Run& run) {
  Inputs inputs{runs_before(layer, index, run), &x, nullptr};
  if (inputs.before == kNone) return inputs;
  inputs.x = &state.children[inputs.before].post;
  const std::size_t earlier = runs_before(layer, inputs.before, run);
  inputs.skip = earlier == kNone ? &x : &state.children[earlier].post;
  return inputs;
}

bool uses_skip(const Layer& sub_layer, const Inputs& inputs) {
  return sub_layer.config.type == LayerType::residual && inputs.skip != nullptr &&
         inputs.skip->size() == inputs.x->size();
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  state.children.resize(layer.sub_layers.size());
  const Tensor<float>* input = &x;
  const Tensor<float>* skip = nullptr;
  for (std::size_t i = 0; i < layer.sub_layers.size(); ++i) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run);
    if (sub_layer.config.is_disabled) continue;
    forward_layer(sub_layer, *input, skip, state.children[i], run);
    skip = input;
    input = &state.children[i].post;
  }
  copy_tensor(*input, state.post);
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run& run) {
  const Tensor<float>* grad = &grad_output;
  const Tensor<float>* grad_skip = nullptr;  // belongs to the input of the sub-layer that is next in this loop
  for (std::size_t i = runs_before(layer, layer.sub_layers.size(), run); i != kNone;) {
    Layer& sub_layer = resolve(layer.sub_layers[i], run);
    const Inputs inputs = inputs_of(layer, i, x, state, run);
    LayerState& child = state.children[i];
    backward_layer(sub_layer, *inputs.x, inputs.skip, *grad, child,
                   resolve_gradient(layer.sub_layers[i], gradient.children[i], run), run);
    if (grad_skip != nullptr) kernels::add(grad_skip->values(), child.grad_input.values());
    grad_skip = uses_skip(sub_layer, inputs) ? &child.grad_skip : nullptr;
    grad = &child.grad_input;
    i = inputs.before;
  }
  copy_tensor(*grad, state.grad_input);
}

}  // namespace

const LayerFunctions kSequential{LayerType::sequential, no_weights, nullptr, forward, backward};

}  // namespace imago::layers
