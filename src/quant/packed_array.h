#pragma once

// How a whole weight array is packed. Dtypes and arrays that are one matrix: weight after weight. Block formats, in
// arrays with vectors in them: the blocks of all matrices, then all vectors in float32.

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "imago/codec.h"
#include "quant/scheme.h"

namespace imago {

/// Whether the array is packed in two kinds of parts, blocks and vectors.
bool has_parts(Format format, const WeightShape& shape) noexcept;

/// A range of an array that lies in one piece in its packed form.
struct ArrayPart {
  std::size_t count;  ///< of its weights
  std::size_t place;  ///< its first weight: among those of all matrices, or of all vectors
  bool is_vector;     ///< apart from the blocks, in float32
};
/// The part of the `count` weights from `first` on that comes first.
ArrayPart part_at(Format format, const WeightShape& shape, std::size_t first, std::size_t count) noexcept;

/// Whether what lies before weight `place` of packed weights are whole bytes and blocks.
bool begins_anew(Format format, std::size_t place) noexcept;

/// Bytes of a packed array, scales not included. Throws ShapeError if rows do not fit the block, or on overflow.
std::size_t packed_bytes(Format format, const WeightShape& shape);

/// The same with the scales of the scheme. Throws also for a group that does not divide the rows.
std::size_t stored_bytes(const Scheme& scheme, const WeightShape& shape);

/// Bytes of the blocks: all there are, but for float32 vectors.
std::size_t block_bytes(Format format, const WeightShape& shape);

void encode_array(Format format, const WeightShape& shape, std::span<const float> weights, Scales scales,
                  std::span<std::byte> packed);
void decode_array(Format format, const WeightShape& shape, std::span<const std::byte> packed, Scales scales,
                  std::span<float> weights);

/// As check_codes: vectors may hold any values.
void check_array(Format format, const WeightShape& shape, std::span<const std::byte> packed);

/// As for a matrix of these rows; block formats look at the rows of the matrices. Throws ShapeError if they do not fit,
/// and for a block format without a matrix.
ScaleLayout scale_layout(const Scheme& scheme, const WeightShape& shape);

/// `format` where it fits all matrices of the array, else the nearest with smaller blocks that does; none if no block
/// fits, or for a block format if there is no matrix.
std::optional<Format> fitting_type(Format format, const WeightShape& shape) noexcept;

/// What blocks must fit, for messages: "rows of 64", "rows of multiples of 32" in an array of several matrices.
std::string rows_text(const WeightShape& shape);

}  // namespace imago
