#pragma once

// From the canonical bytes of a matrix to the planes of kernels/cuda/layout.h, on the host. Plain C++: builds without
// CUDA have it too, and test it against the codecs.

#include <cstddef>
#include <vector>

#include "kernels/cuda/layout.h"
#include "kernels/matrix.h"

namespace imago::kernels::cuda {

/// A matrix as planes hold it. They have one zero point for all weights, and none of types that are not coded: where a
/// source has more, this is its weights in float32.
class PlaneSource {
 public:
  /// Throws like RunMatrix. `source` must outlive it.
  explicit PlaneSource(const PackedMatrix& source);
  PlaneSource(const PlaneSource&) = delete;
  PlaneSource& operator=(const PlaneSource&) = delete;

  const PackedMatrix& matrix() const noexcept { return matrix_; }

 private:
  std::vector<float> decoded_;
  PackedMatrix matrix_;
};

/// Sizes of the planes of a matrix, and where they lie in one block of memory, each at a multiple of 256 bytes. Rows of
/// a plane follow each other without gaps, so a range of rows is a range of bytes in each; of scales a range that
/// begins at a multiple of kMostTileRows.
struct PlaneLayout {
  /// Throws like RunMatrix for sources that cannot be laid out. REQUIRES: zero points as PlaneSource leaves them.
  explicit PlaneLayout(const PackedMatrix& source);
  /// From sizes alone, for planning; `scale_columns` as columns_per_scale gives them.
  PlaneLayout(Format format, std::size_t rows, std::size_t cols, std::size_t scale_columns);

  /// Bytes of one row in a plane; 0: the format does not have it.
  std::size_t codes_row, high_row, scales_row, row_scales_row;
  std::size_t codes_at, high_at, scales_at, row_scales_at;
  std::size_t bytes;

  /// Rows that so many have in the plane of scales, which has whole scale tiles only.
  static constexpr std::size_t scale_rows(std::size_t rows) noexcept {
    return (rows + kMostTileRows - 1) / kMostTileRows * kMostTileRows;
  }

  ScaleTileGrid scale_tiles() const noexcept { return shape_.scale_tiles; }

  /// Planes of this layout in a block of memory that begins at `base`, of host or device.
  Planes planes(const std::byte* base) const noexcept;

 private:
  Planes shape_;
};

/// Where rows [first, last) of the planes are written; null for planes that the format does not have.
struct PlaneTargets {
  std::byte* codes;
  std::byte* high;
  std::byte* scales;
  float* row_scales;
};

/// Lays out rows [first, last), on the calling thread. REQUIRES: a source that PlaneLayout took; `first` is a multiple
/// of kMostTileRows, and so is `last` if it is not the end.
void lay_out_rows(const PackedMatrix& source, const PlaneLayout& layout, std::size_t first, std::size_t last,
                  const PlaneTargets& to);

}  // namespace imago::kernels::cuda
