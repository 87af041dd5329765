#include "layers/children.h"

#include "imago/error.h"
#include "kernels/ops.h"

namespace imago::layers {

namespace {

bool leads_elsewhere(const Layer& child) { return child.config.is_remote_link && !child.config.is_disabled; }

Grid& grid_of(const Layer& child, Run& run) {
  if (run.grid == nullptr) throw UsageError(describe(child) + ": a remote link needs a network around it");
  return *run.grid;
}

}  // namespace

Layer& resolve(Layer& child, Run& run) {
  return leads_elsewhere(child) ? grid_of(child, run).layer(child.config.target) : child;
}

LayerGradient& resolve_gradient(const Layer& child, LayerGradient& own, Run& run) {
  return leads_elsewhere(child) ? grid_of(child, run).gradient(child.config.target) : own;
}

std::size_t samples_of(const Layer& layer, const Shape& x) {
  const std::size_t samples = x.rank() < 2 ? 1 : x[0];
  if (samples == 0) throw ShapeError(describe(layer) + ": the batch " + x.to_string() + " has no samples");
  return samples;
}

void resize_matrix(Tensor<float>& tensor, std::size_t rows, std::size_t cols) {
  const Shape& shape = tensor.shape();
  if (shape.rank() == 2 && shape[0] == rows && shape[1] == cols) return;
  tensor.resize(Shape{rows, cols});
}

void copy_tensor(const Tensor<float>& from, Tensor<float>& to) {
  to.resize(from.shape());
  kernels::copy(from.values(), to.values());
}

void accumulate(bool first, const Tensor<float>& term, Tensor<float>& sum) {
  if (first) {
    sum = term;
  } else {
    kernels::add(term.values(), sum.values());
  }
}

}  // namespace imago::layers
