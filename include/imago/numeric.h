#pragma once

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "imago/format.h"

namespace imago {

// The exact meaning of the 21 types, one value at a time. These functions are the definition;
// the bulk versions in codec.h give the same bits faster. All of them are pure and safe from any thread.

/// IEEE binary16: round to nearest even, subnormals kept, overflow to infinity, NaN stays NaN (quiet).
Half to_half(float value) noexcept;
float from_half(Half code) noexcept;

/// Upper half of binary32, round to nearest even, NaN stays NaN.
BFloat16 to_bfloat16(float value) noexcept;
float from_bfloat16(BFloat16 code) noexcept;

/// OCP OFP8 E4M3: round to nearest even, saturating at ±448 (infinities too); NaN gives 0x7F with the sign.
Fp8E4M3 to_fp8e4m3(float value) noexcept;
float from_fp8e4m3(Fp8E4M3 code) noexcept;

/// OCP OFP8 E5M2: round to nearest even, saturating at ±57344 (infinities too); NaN gives 0x7F with the sign.
Fp8E5M2 to_fp8e5m2(float value) noexcept;
float from_fp8e5m2(Fp8E5M2 code) noexcept;

/// Which values fp4 codes stand for. `legacy` reads files of the original engine for comparison, never by default.
enum class Fp4Table : std::uint8_t { ocp, legacy };

/// OCP MX E2M1: 0 0.5 1 1.5 2 3 4 6 with a sign; ties to the even code, saturating at ±6; NaN gives 0.
Fp4 to_fp4(float value) noexcept;
float from_fp4(Fp4 code, Fp4Table table = Fp4Table::ocp) noexcept;

/// Nearest integer, halves away from zero, as a float. NaN stays NaN.
float round_half_away(float value) noexcept;

/// The code of weight `w` under `scale`: w / scale rounded and saturated for scaled types, converted for
/// the wide floats, which ignore the scale. Unsigned integers add `zero_point`, the code of a weight of 0, before they
/// saturate; other types ignore it. A scale of 0 acts as 1. NaN gives the code of 0 (binary: -1).
template <Numeric T>
T quantize_value(float w, float scale, float zero_point = 0) noexcept;

/// The weight that `code` stands for: (code - zero_point) · scale for unsigned integers.
template <Numeric T>
float dequantize_value(T code, float scale, float zero_point = 0) noexcept;

/// dequantize(quantize(w)): what remains of a weight in `dtype`.
float simulate_precision(float w, DType dtype, float scale) noexcept;

/// All of `weights` as codes of T under one scale; one code per element, not bit-packed.
template <Numeric T>
std::vector<T> cast_weights(std::span<const float> weights, float scale);

/// The default scale of a type: max|w| / Q (unsigned: max(0, max w) / Q; binary: mean|w|); 1 where that is zero
/// or not finite, and for formats without scales beside the weights. Where the weights reach the end of float32 it is
/// as much smaller as it takes for all of them to decode to something finite. NaN weights are passed over.
float derive_scale(Format format, std::span<const float> weights) noexcept;

/// mean|w|, the scale of BitNet b1.58 for ternary weights; 1 where that is zero or not finite.
float derive_absmean_scale(std::span<const float> weights) noexcept;

/// The scale whose rounding has the least squared error, weighted by `importance` (one factor per weight, empty: all
/// equal). Never worse than `derive_scale`, and equal to it for integers of 32 and 64 bits, which have no need to
/// saturate. Cost: some 40 passes over at most 64 Ki of the weights (every n-th of a larger array), and two over all.
float derive_mse_scale(DType dtype, std::span<const float> weights, std::span<const float> importance = {});

/// As `derive_scale`, with the `percentile`-th largest magnitude (0 < percentile <= 1) in place of the maximum, so
/// that a few outliers saturate instead of stretching the grid; `derive_scale` itself for binary and for integers of 32
/// and 64 bits. Throws UsageError for other percentiles.
float derive_percentile_scale(DType dtype, std::span<const float> weights, double percentile);

/// A scale, and the code of a weight of 0.
struct AsymmetricScale {
  float scale = 1;
  float zero_point = 0;  ///< an integer from 0 to `scale_divisor`; 0 for all types but unsigned integers
  friend bool operator==(const AsymmetricScale&, const AsymmetricScale&) = default;
};

// The same three for weights of both signs. Unsigned integers span the range from min(w) to max(w), 0 included, so that
// the rounding of a weight within it is off by half a scale at most. Without negative weights, and for all other types,
// these are the scales above, with a zero point of 0.

/// (max w - min w) / Q, with the zero point nearest to -min w / scale.
AsymmetricScale derive_asymmetric_scale(Format format, std::span<const float> weights) noexcept;

/// Searches scales as `derive_mse_scale` does, for the zero points next to that of the range; types of at most 4 bits
/// go on from there as long as the error falls. Never worse than `derive_asymmetric_scale`.
AsymmetricScale derive_asymmetric_mse_scale(DType dtype, std::span<const float> weights,
                                            std::span<const float> importance = {});

/// Derived from the weights after clipping them to the `percentile`-th largest magnitude.
AsymmetricScale derive_asymmetric_percentile_scale(DType dtype, std::span<const float> weights, double percentile);

namespace detail {

template <class T>
concept HasValue = requires(T code) {
  code.value;
};

/// An integer-valued double as a code, saturated to the range that the kind and the bits of the type give.
template <Numeric T>
T saturate_to_code(double value) noexcept {
  constexpr DTypeInfo kInfo = info(dtype_of<T>);
  constexpr bool kUnsigned = kInfo.kind == NumberKind::unsigned_integer;
  constexpr int kMagnitudeBits = kUnsigned ? kInfo.bits : kInfo.bits - 1;
  constexpr double kBeyond = kMagnitudeBits == 64 ? 0x1p64 : static_cast<double>(1ull << (kMagnitudeBits % 64));
  constexpr double kLowest = kUnsigned ? 0 : kInfo.kind == NumberKind::ternary ? -1 : -kBeyond;
  if constexpr (HasValue<T>) {
    const double limited = value < kLowest ? kLowest : value > kBeyond - 1 ? kBeyond - 1 : value;
    return {static_cast<decltype(T::value)>(limited)};
  } else {
    // 2^63 - 1 and 2^64 - 1 are not doubles, so the upper end is compared with the first value beyond the type.
    if (value >= kBeyond) return std::numeric_limits<T>::max();
    return static_cast<T>(value < kLowest ? kLowest : value);
  }
}

inline float effective_scale(float scale) noexcept { return scale == 0 ? 1.0f : scale; }

}  // namespace detail

template <Numeric T>
T quantize_value(float w, float scale, float zero_point) noexcept {
  if constexpr (std::floating_point<T>) {
    return static_cast<T>(w);
  } else if constexpr (std::same_as<T, Half>) {
    return to_half(w);
  } else if constexpr (std::same_as<T, BFloat16>) {
    return to_bfloat16(w);
  } else if constexpr (std::same_as<T, Binary>) {
    return {static_cast<std::int8_t>(w >= 0 ? 1 : -1)};  // NaN compares false
  } else {
    const float t = w / detail::effective_scale(scale);
    if constexpr (std::same_as<T, Fp8E4M3>) {
      return to_fp8e4m3(t);
    } else if constexpr (std::same_as<T, Fp8E5M2>) {
      return to_fp8e5m2(t);
    } else if constexpr (std::same_as<T, Fp4>) {
      return to_fp4(t);
    } else {
      const double whole = std::isnan(t) ? 0.0 : static_cast<double>(round_half_away(t));
      constexpr bool kUnsigned = info(dtype_of<T>).kind == NumberKind::unsigned_integer;
      return detail::saturate_to_code<T>(kUnsigned ? whole + static_cast<double>(zero_point) : whole);
    }
  }
}

template <Numeric T>
float dequantize_value(T code, float scale, float zero_point) noexcept {
  if constexpr (std::floating_point<T>) {
    return static_cast<float>(code);
  } else if constexpr (std::same_as<T, Half>) {
    return from_half(code);
  } else if constexpr (std::same_as<T, BFloat16>) {
    return from_bfloat16(code);
  } else {
    const float factor = detail::effective_scale(scale);
    if constexpr (std::same_as<T, Fp8E4M3>) {
      return from_fp8e4m3(code) * factor;
    } else if constexpr (std::same_as<T, Fp8E5M2>) {
      return from_fp8e5m2(code) * factor;
    } else if constexpr (std::same_as<T, Fp4>) {
      return from_fp4(code) * factor;
    } else {
      float whole;
      if constexpr (detail::HasValue<T>) {
        whole = static_cast<float>(code.value);
      } else {
        whole = static_cast<float>(code);
      }
      constexpr bool kUnsigned = info(dtype_of<T>).kind == NumberKind::unsigned_integer;
      return (kUnsigned ? whole - zero_point : whole) * factor;
    }
  }
}

template <Numeric T>
std::vector<T> cast_weights(std::span<const float> weights, float scale) {
  std::vector<T> codes(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) codes[i] = quantize_value<T>(weights[i], scale);
  return codes;
}

// ---- tensors

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
