#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "imago/format.h"
#include "imago/numeric.h"

namespace imago {

/// Extents, outermost first. An empty shape is a scalar (one element). Value type.
class Shape {
 public:
  Shape() = default;
  Shape(std::initializer_list<std::size_t> extents) : Shape(std::vector<std::size_t>(extents)) {}
  /// Throws ShapeError if the number of elements overflows.
  explicit Shape(std::vector<std::size_t> extents);

  std::size_t rank() const noexcept { return extents_.size(); }
  std::size_t operator[](std::size_t axis) const { return extents_.at(axis); }
  std::span<const std::size_t> extents() const noexcept { return extents_; }
  std::size_t elements() const noexcept { return elements_; }
  /// Innermost extent; 1 for a scalar.
  std::size_t last() const noexcept { return extents_.empty() ? 1 : extents_.back(); }
  /// "[2, 3, 4]"
  std::string to_string() const;
  bool operator==(const Shape& other) const noexcept { return extents_ == other.extents_; }

 private:
  std::vector<std::size_t> extents_;
  std::size_t elements_ = 1;
};

namespace detail {
/// Throws ShapeError unless `shape` has `elements` elements.
void check_elements(const Shape& shape, std::size_t elements);
}  // namespace detail

/// A dense row-major array of codes of one of the 21 types, one element per code (bit-packed weights live in a
/// WeightStore). Owns its elements; copying copies them. Reading is safe from many threads.
template <Numeric T>
class Tensor {
 public:
  Tensor() : elements_(1) {}
  explicit Tensor(Shape shape) : shape_(std::move(shape)), elements_(shape_.elements()) {}
  /// Throws ShapeError if `elements` does not fill `shape`.
  Tensor(Shape shape, std::vector<T> elements) : shape_(std::move(shape)), elements_(std::move(elements)) {
    detail::check_elements(shape_, elements_.size());
  }

  static constexpr DType dtype() noexcept { return dtype_of<T>; }
  const Shape& shape() const noexcept { return shape_; }
  std::size_t size() const noexcept { return elements_.size(); }
  std::span<T> values() noexcept { return elements_; }
  std::span<const T> values() const noexcept { return elements_; }
  T& operator[](std::size_t i) noexcept { return elements_[i]; }
  const T& operator[](std::size_t i) const noexcept { return elements_[i]; }

  /// Takes another shape; memory is reused where it is enough. Elements are left as they are or, new ones, zero.
  void resize(const Shape& shape) {
    elements_.resize(shape.elements());
    if (!(shape_ == shape)) shape_ = shape;
  }
  /// The same elements under another shape. Throws ShapeError if the count differs.
  Tensor reshaped(Shape shape) const { return Tensor(std::move(shape), elements_); }

 private:
  Shape shape_;
  std::vector<T> elements_;
};

/// `weights` as codes of T under one scale.
template <Numeric T>
Tensor<T> cast_tensor(const Tensor<float>& weights, float scale) {
  return Tensor<T>(weights.shape(), cast_weights<T>(weights.values(), scale));
}

}  // namespace imago
