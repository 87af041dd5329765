#pragma once

// What containers share: how the layers inside them are found and run.

#include <cstddef>

#include "layers/layer_functions.h"

namespace imago::layers {

/// The layer that runs in the place of a branch or sub-layer: itself or, for a remote link, the grid layer that it
/// names. A disabled link stays itself, since nothing of it runs. Throws UsageError for a link without a grid and for a
/// target outside it.
Layer& resolve(Layer& child, Run& run);

/// Where the weight gradient of a branch or sub-layer goes: `own` or, for a remote link, that of its target.
LayerGradient& resolve_gradient(const Layer& child, LayerGradient& own, Run& run);

/// Samples of a batch: the first extent, 1 below rank 2. Throws ShapeError, naming the layer, for none.
std::size_t samples_of(const Layer& layer, const Shape& x);

/// Makes the tensor [rows, cols]; allocates nothing if it is that already.
void resize_matrix(Tensor<float>& tensor, std::size_t rows, std::size_t cols);

/// to = from, on all threads; allocates nothing if the shapes are equal.
void copy_tensor(const Tensor<float>& from, Tensor<float>& to);

/// sum = term for the first, sum += term for the others.
void accumulate(bool first, const Tensor<float>& term, Tensor<float>& sum);

}  // namespace imago::layers
