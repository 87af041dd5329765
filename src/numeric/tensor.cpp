#include "imago/numeric.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "imago/error.h"

namespace imago {

Shape::Shape(std::vector<std::size_t> extents) : extents_(std::move(extents)) {
  // An extent of 0 empties the tensor however large the others are, so it must be seen before they are multiplied.
  if (std::ranges::find(extents_, std::size_t{0}) != extents_.end()) {
    elements_ = 0;
    return;
  }
  for (const std::size_t extent : extents_) elements_ = checked_mul(elements_, extent, "the elements of a tensor");
}

std::string Shape::to_string() const {
  std::string text = "[";
  for (const std::size_t extent : extents_) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

void detail::check_elements(const Shape& shape, std::size_t elements) {
  if (shape.elements() != elements) {
    throw ShapeError(
        fmt::format("a tensor of shape {} has {} elements, not {}", shape.to_string(), shape.elements(), elements));
  }
}

}  // namespace imago
