#pragma once

// Plain C++: a product, and convolutions as products with the columns of their input.

#include "math/backend.h"

namespace imago::math {

namespace plain {
void gemm(const GemmArgs& args);
}  // namespace plain

/// Convolutions by a given product.
using GemmFunction = void (*)(const GemmArgs& args);
void columns_convolve(const ForwardArgs& args, GemmFunction gemm);
void columns_backward_data(const BackwardDataArgs& args, GemmFunction gemm);
void columns_backward_weights(const BackwardWeightsArgs& args, GemmFunction gemm);

}  // namespace imago::math
