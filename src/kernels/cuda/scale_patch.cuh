#pragma once

// Where the scales of groups lie in Planes::scales: in patches of eight rows and eight groups. Kernels read tiles of
// several rows, and what a tile needs of the scales is one piece of memory, for most formats of whole lines. In rows of
// their own they would be a few bytes of many lines.

#include <cstdint>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/scales.cuh"

namespace imago::kernels::cuda {

inline constexpr std::uint32_t kPatchRows = 8, kPatchGroups = 8;

/// [8 rows][8 groups] scales, then [8 rows] scales of super-blocks.
template <class Scales>
struct ScalePatch {
  static constexpr int kRow = static_cast<int>(kPatchGroups) * Scales::kBytes;
  static constexpr int kSupersAt = static_cast<int>(kPatchRows) * kRow;
  static constexpr int kBytes = kSupersAt + static_cast<int>(kPatchRows) * Scales::kSuperBytes;
};

/// Where tiles have 16 rows, the two patches of their columns lie together. That is so with codes that are numbers of
/// levels, in rows of more groups than these; see TileSlice.
inline constexpr std::uint32_t kShortTileGroups = 128;
template <class Codes>
constexpr std::uint32_t patch_pairs(std::uint32_t groups) noexcept {
  return kAreLevels<Codes> && groups > kShortTileGroups ? 1 : 0;
}

/// A row's place among the patches.
struct PatchRow {
  std::uint32_t first, row;  ///< the patch of its first groups; the row in it

  IMAGO_HD PatchRow(const PatchGrid& grid, std::uint32_t matrix_row) noexcept {
    const std::uint32_t eight = matrix_row / kPatchRows;
    first = ((eight >> grid.pairs) * grid.width << grid.pairs) + (eight & grid.pairs);
    row = matrix_row % kPatchRows;
  }
  /// Where the patch of a group begins.
  template <class Scales>
  IMAGO_HD std::size_t patch_at(const PatchGrid& grid, std::uint32_t group) const noexcept {
    const std::size_t number = first + (group / kPatchGroups << grid.pairs);
    return number * ScalePatch<Scales>::kBytes;
  }
};

/// What Scales::read takes, as it lies in memory.
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

/// Of a group of a row: plain loads.
template <class Scales>
IMAGO_HD ScaleBits<Scales> load_scales(const Planes& p, const PatchRow& place, std::uint32_t group) noexcept {
  using Patch = ScalePatch<Scales>;
  ScaleBits<Scales> bits{};
  if constexpr (Patch::kBytes > 0) {
    const std::byte* const patch = p.scales + place.patch_at<Scales>(p.patches, group);
    const std::byte* const row = patch + place.row * Patch::kRow;
    bits.group = detail::load_small<Scales::kBytes>(row + group % kPatchGroups * Scales::kBytes);
    if constexpr (Scales::kHidesSuper) {
      load_words<Scales::kSuperWords>(bits.supers, row);
    } else if constexpr (Scales::kSuperBytes > 0) {
      bits.supers[0] =
          detail::load_small<Scales::kSuperBytes>(patch + Patch::kSupersAt + place.row * Scales::kSuperBytes);
    }
  }
  return bits;
}

}  // namespace imago::kernels::cuda
