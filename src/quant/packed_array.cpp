#include "quant/packed_array.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "imago/error.h"

namespace imago {

namespace {

/// Calls body(first weight, part) for all parts, in the order of the array.
template <class Body>
void for_each_part(Format format, const WeightShape& shape, Body&& body) {
  for (std::size_t first = 0; first < shape.count();) {
    const ArrayPart part = part_at(format, shape, first, shape.count() - first);
    body(first, part);
    first += part.count;
  }
}

}  // namespace

bool has_parts(Format format, const WeightShape& shape) noexcept { return format.is_block() && shape.vectors != 0; }

ArrayPart part_at(Format format, const WeightShape& shape, std::size_t first, std::size_t count) noexcept {
  if (!has_parts(format, shape)) return {count, first, false};
  const std::size_t period = shape.count() / shape.repeats, matrices = period - shape.vectors;
  const std::size_t repeat = first / period, within = first % period;
  if (within < matrices) return {std::min(count, matrices - within), repeat * matrices + within, false};
  return {std::min(count, period - within), repeat * shape.vectors + within - matrices, true};
}

bool begins_anew(Format format, std::size_t place) noexcept {
  if (format.is_block()) return place % static_cast<std::size_t>(format.block_values()) == 0;
  return place % 8 * static_cast<std::size_t>(bits(format.dtype())) % 8 == 0;
}

std::size_t block_bytes(Format format, const WeightShape& shape) { return packed_bytes(format, shape.matrix_count()); }

std::size_t packed_bytes(Format format, const WeightShape& shape) {
  const std::size_t count = checked_mul(shape.rows, shape.cols, "the weights of an array");
  if (!has_parts(format, shape)) return packed_bytes(format, count);
  return checked_add(block_bytes(format, shape), checked_mul(shape.vector_count(), sizeof(float), "the vectors"),
                     "a packed array");
}

std::size_t stored_bytes(const Scheme& scheme, const WeightShape& shape) {
  return packed_bytes(scheme.format, shape) + scale_layout(scheme, shape).count * sizeof(float);
}

void encode_array(Format format, const WeightShape& shape, std::span<const float> weights, Scales scales,
                  std::span<std::byte> packed) {
  if (!has_parts(format, shape)) return encode(format, weights, scales, packed);
  const std::span<std::byte> vectors = packed.subspan(block_bytes(format, shape));
  for_each_part(format, shape, [&](std::size_t first, const ArrayPart& part) {
    const std::span<const float> values = weights.subspan(first, part.count);
    if (part.is_vector) {
      std::memcpy(vectors.data() + part.place * sizeof(float), values.data(), values.size_bytes());
    } else {
      encode(format, values, {}, packed.subspan(packed_bytes(format, part.place), packed_bytes(format, part.count)));
    }
  });
}

void decode_array(Format format, const WeightShape& shape, std::span<const std::byte> packed, Scales scales,
                  std::span<float> weights) {
  if (!has_parts(format, shape)) return decode(format, packed, scales, weights);
  const std::span<const std::byte> vectors = packed.subspan(block_bytes(format, shape));
  for_each_part(format, shape, [&](std::size_t first, const ArrayPart& part) {
    const std::span<float> values = weights.subspan(first, part.count);
    if (part.is_vector) {
      std::memcpy(values.data(), vectors.data() + part.place * sizeof(float), values.size_bytes());
    } else {
      decode(format, packed.subspan(packed_bytes(format, part.place), packed_bytes(format, part.count)), {}, values);
    }
  });
}

void check_array(Format format, const WeightShape& shape, std::span<const std::byte> packed) {
  if (!has_parts(format, shape)) return check_codes(format, shape.count(), packed);
  const std::size_t wanted = packed_bytes(format, shape);
  if (packed.size() != wanted) {
    throw ShapeError(fmt::format("{} weights in {} and {} in float32 take {} bytes, not {}", shape.matrix_count(),
                                 format.name(), shape.vector_count(), wanted, packed.size()));
  }
}

ScaleLayout scale_layout(const Scheme& scheme, const WeightShape& shape) {
  if (!scheme.format.is_block()) return scale_layout(scheme, shape.rows, shape.cols);
  if (shape.matrix_count() == 0 && shape.vector_count() != 0) {
    throw ShapeError(fmt::format("{} is for matrices, and these weights are vectors", scheme.format.name()));
  }
  return scale_layout(scheme, 1, shape.row_length());
}

std::string rows_text(const WeightShape& shape) {
  return fmt::format("rows of {}{}", shape.is_one_matrix() ? "" : "multiples of ", shape.row_length());
}

std::optional<Format> fitting_type(Format format, const WeightShape& shape) noexcept {
  if (format.is_block() && shape.matrix_count() == 0) return std::nullopt;
  return fitting_type(format, shape.row_length());
}

}  // namespace imago
