#pragma once

// The device layout of packed weights. Blocks of files have odd sizes (18, 210 bytes …) that no thread can load at
// once, so codes and scales are separated into planes. Planes of codes are arrays over groups of 32 weights of a row: a
// thread takes one group, such as 16 bytes of 4-bit codes, its neighbour the next one, and a warp reads whole cache
// lines.
//
// Rows are padded to whole groups with codes that decode to finite values; activations of the padding are zero.

#include <cstddef>
#include <cstdint>

#include "imago/format.h"

namespace imago::kernels::cuda {

inline constexpr std::size_t kGroup = 32;
/// Most rows that kernels read together. The last of them may lie past the end of the matrix, in allocated memory.
inline constexpr std::uint32_t kMostTileRows = 16;
constexpr std::size_t padded_cols(std::size_t cols) noexcept { return (cols + kGroup - 1) / kGroup * kGroup; }

struct alignas(8) float2_pod {
  float x, y;
};

/// How scale tiles lie: see scale_tile.cuh.
struct ScaleTileGrid {
  std::uint32_t width = 0;  ///< scale tiles across eight rows, an even number
  /// 1: every scale tile of rows 8 to 15 follows the one of rows 0 to 7 with the same columns; 0: they follow all of
  /// those.
  std::uint32_t pairs = 0;
};

/// Plain pointers into device memory: what kernels take by value. Which planes a format has, and what they hold, is
/// written beside its decoder in decode.cuh. Every row of codes begins `stride` groups after the previous one, a
/// multiple of 4 groups, so that 16 bytes can be loaded at once also from codes of one bit.
struct Planes {
  const std::byte* codes = nullptr;   ///< [rows][stride] main codes: 256 … 4 bytes a group
  const std::byte* high = nullptr;    ///< [rows][stride] the upper bits of 3-bit codes, the lowest of 5- and 6-bit ones
  const std::byte* scales = nullptr;  ///< scales of groups and super-blocks, in scale tiles: see scale_tile.cuh
  const float* row_scales = nullptr;  ///< dtypes: [rows][row_scale_count]; group g of a row has number g >> scale_shift
  std::uint32_t rows = 0, cols = 0;
  std::uint32_t groups = 0;  ///< of a row: padded_cols(cols) / 32
  std::uint32_t stride = 0;  ///< groups from one row to the next, a multiple of 4
  ScaleTileGrid scale_tiles;
  std::uint32_t row_scale_count = 0, scale_shift = 31;
  float zero = 0;  ///< dtypes: value = (code · step - zero) · scale; see decode.cuh
};

}  // namespace imago::kernels::cuda
