#pragma once

// Scale tiles: how the scales of groups lie in Planes::scales. Kernels read tiles of several rows, so scales are stored
// in tiles of eight rows by eight groups. What a kernel's tile needs is then contiguous, for most formats in whole
// cache lines; stored by rows it would be a few bytes in each of many lines.

#include <cstdint>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/scales.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kScaleTileRows = 8, kScaleTileGroups = 8;

/// [8 rows][8 groups] scales, then [8 rows] super-scales (scales of super-blocks).
template <class Scales>
struct ScaleTile {
  static constexpr int kRow = static_cast<int>(kScaleTileGroups) * Scales::kBytes;
  static constexpr int kSupersAt = static_cast<int>(kScaleTileRows) * kRow;
  static constexpr int kBytes = kSupersAt + static_cast<int>(kScaleTileRows) * Scales::kSuperBytes;
};

/// Where the matvec has tiles of 16 rows (TileLayout), the two scale tiles of their columns lie together: with codes
/// that are indices of levels, in rows of more groups than this.
inline constexpr std::uint32_t kShortTileGroups = 128;
template <class Codes>
constexpr std::uint32_t scale_tile_pairs(std::uint32_t groups) noexcept {
  return kAreLevels<Codes> && groups > kShortTileGroups ? 1 : 0;
}

/// Where the scales of a row lie.
struct ScaleTileRow {
  std::uint32_t first, row;  ///< scale tile of its first groups; row in it

  IMAGO_HD ScaleTileRow(const ScaleTileGrid& grid, std::uint32_t matrix_row) noexcept {
    const std::uint32_t eight = matrix_row / kScaleTileRows;
    first = ((eight >> grid.pairs) * grid.width << grid.pairs) + (eight & grid.pairs);
    row = matrix_row % kScaleTileRows;
  }
  /// Offset of the scale tile of a group.
  template <class Scales>
  IMAGO_HD std::size_t tile_at(const ScaleTileGrid& grid, std::uint32_t group) const noexcept {
    const std::size_t number = first + (group / kScaleTileGroups << grid.pairs);
    return number * ScaleTile<Scales>::kBytes;
  }
};

/// The arguments of Scales::read, as stored.
template <class Scales>
struct ScaleBits {
  std::uint32_t group, supers[Scales::kSuperWords];
};

namespace detail {
template <int kBytes>
IMAGO_HD std::uint32_t load_small(const std::byte* p) noexcept {
  if constexpr (kBytes == 1) return *reinterpret_cast<const std::uint8_t*>(p);
  if constexpr (kBytes == 2) return *reinterpret_cast<const std::uint16_t*>(p);
  if constexpr (kBytes == 4) return *reinterpret_cast<const std::uint32_t*>(p);
  return 0;
}
}  // namespace detail

/// Loads the scales of a group with plain loads.
template <class Scales>
IMAGO_HD ScaleBits<Scales> load_scales(const Planes& p, const ScaleTileRow& place, std::uint32_t group) noexcept {
  using Tile = ScaleTile<Scales>;
  ScaleBits<Scales> bits{};
  if constexpr (Tile::kBytes > 0) {
    const std::byte* const tile = p.scales + place.tile_at<Scales>(p.scale_tiles, group);
    const std::byte* const row = tile + place.row * Tile::kRow;
    bits.group = detail::load_small<Scales::kBytes>(row + group % kScaleTileGroups * Scales::kBytes);
    if constexpr (Scales::kHidesSuper) {
      load_words<Scales::kSuperWords>(bits.supers, row);
    } else if constexpr (Scales::kSuperBytes > 0) {
      bits.supers[0] =
          detail::load_small<Scales::kSuperBytes>(tile + Tile::kSupersAt + place.row * Scales::kSuperBytes);
    }
  }
  return bits;
}

}  // namespace imago::kernels::cuda
