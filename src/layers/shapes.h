#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "imago/numeric.h"

namespace imago::layers {

/// Gives the tensor these extents; nothing is allocated if it has them already.
inline void resize_to(Tensor<float>& tensor, std::span<const std::size_t> extents) {
  if (std::ranges::equal(tensor.shape().extents(), extents)) return;
  tensor.resize(Shape(std::vector(extents.begin(), extents.end())));
}

inline void resize_to(Tensor<float>& tensor, std::initializer_list<std::size_t> extents) {
  resize_to(tensor, std::span(extents.begin(), extents.size()));
}

}  // namespace imago::layers
