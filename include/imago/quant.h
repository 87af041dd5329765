#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "imago/format.h"

namespace imago {

// Rows of block-quantized weights, in plain C++: the definition that the fast kernels are tested against. For bulk
// conversion use codec.h, which gives the same bytes on all cores.

/// 32 activations quantized to int8: value[i] = scale · q[i]. `sum` is the sum of q, which pays for the offsets of
/// unsigned weight codes and for `min` terms.
struct Int8Block {
  static constexpr int kValues = 32;
  float scale;
  std::int32_t sum;
  std::int8_t q[kValues];
};

/// Quantizes activations: scale = max|x| / 127 per block, halves away from zero; a short last block is padded with
/// zeros. Values that are not finite give a block of zeros.
std::vector<Int8Block> quantize_activations(std::span<const float> x);

/// Encodes one row. Sizes and importance as in `encode` (codec.h).
void quantize_row(BlockFormat format, std::span<const float> row, std::span<std::byte> blocks,
                  std::span<const float> importance = {});

/// Decodes one row. Throws ShapeError if sizes do not fit.
void dequantize_row(BlockFormat format, std::span<const std::byte> blocks, std::span<float> row);

/// Dot product of a packed row with float32 activations, products summed in double.
/// Throws ShapeError if `x` is shorter or longer than the row.
float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const float> x);

/// Dot product of a packed row with int8 activations: exact integer sums per group of equal scale, then float64.
float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const Int8Block> x);

}  // namespace imago
