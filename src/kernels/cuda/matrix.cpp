#include "kernels/cuda/matrix.h"

#include <algorithm>
#include <array>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/cuda/host_layout.h"

namespace imago::kernels::cuda {

namespace {

constexpr std::size_t kPieceBytes = 16 << 20;  // of pinned memory, twice: enough for the bus to be busy

/// Of rows laid out side by side, plane after plane.
class StagedPlanes {
 public:
  StagedPlanes(const PlaneLayout& layout, std::size_t rows, std::byte* memory) : layout_(layout) {
    codes_ = memory;
    high_ = codes_ + rows * layout.codes_row;
    scales_ = high_ + rows * layout.high_row;
    row_scales_ = scales_ + layout.scale_rows(rows) * layout.scales_row;
  }
  static std::size_t bytes(const PlaneLayout& layout, std::size_t rows) {
    const std::size_t of_row = layout.codes_row + layout.high_row + layout.row_scales_row;
    return rows * of_row + layout.scale_rows(rows) * layout.scales_row;
  }
  PlaneTargets from(std::size_t row) const {
    return {codes_ + row * layout_.codes_row, high_ + row * layout_.high_row, scales_ + row * layout_.scales_row,
            reinterpret_cast<float*>(row_scales_ + row * layout_.row_scales_row)};
  }

 private:
  const PlaneLayout& layout_;
  std::byte* codes_;
  std::byte* high_;
  std::byte* scales_;
  std::byte* row_scales_;
};

/// Rows [first, last), on all threads.
PlaneTargets lay_out_piece(const PackedMatrix& source, const PlaneLayout& layout, std::size_t first, std::size_t last,
                           std::byte* memory) {
  const StagedPlanes staged(layout, last - first, memory);
  constexpr std::size_t kRows = kMostTileRows;  // that are laid out together
  parallel_for_dynamic((last - first + kRows - 1) / kRows,
                       std::max<std::size_t>(1, (std::size_t{64} << 10) / (kRows * layout.codes_row)),
                       [&](std::size_t begin, std::size_t end) {
                         lay_out_rows(source, layout, first + begin * kRows, std::min(first + end * kRows, last),
                                      staged.from(begin * kRows));
                       });
  return staged.from(0);
}

}  // namespace

GpuMatrix::GpuMatrix(std::shared_ptr<Device> device, const PackedMatrix& source) : format_(source.format) {
  const PlaneLayout layout(source);
  data_ = device->allocate(layout.bytes);
  planes_ = layout.planes(data_.address());
  const std::size_t sixteen = StagedPlanes::bytes(layout, kMostTileRows);
  const std::size_t piece_rows = std::min(std::max<std::size_t>(kPieceBytes / sixteen, 1) * kMostTileRows, source.rows);

  // Two pieces take turns: one travels while the other is laid out. An event would tell when a half is free again;
  // waiting for a stream of its own does the same.
  std::array<imago::cuda::Stream, 2> streams{imago::cuda::Stream(device), imago::cuda::Stream(device)};
  std::array<imago::cuda::PinnedMemory, 2> memory;
  for (auto& half : memory) {
    half = imago::cuda::PinnedMemory(StagedPlanes::bytes(layout, piece_rows));
    if (piece_rows == source.rows) break;
  }
  std::size_t turn = 0;
  for (std::size_t first = 0; first < source.rows; first += piece_rows, turn ^= 1) {
    const std::size_t last = std::min(first + piece_rows, source.rows);
    streams[turn].wait();
    const PlaneTargets piece = lay_out_piece(source, layout, first, last, memory[turn].bytes().data());
    const auto copy = [&](const void* from, std::size_t rows, std::size_t plane_at, std::size_t plane_row) {
      streams[turn].copy_in({static_cast<const std::byte*>(from), rows * plane_row},
                            data_.address() + plane_at + first * plane_row);
    };
    const std::size_t rows = last - first;
    copy(piece.codes, rows, layout.codes_at, layout.codes_row);
    copy(piece.high, rows, layout.high_at, layout.high_row);
    copy(piece.scales, layout.scale_rows(rows), layout.scales_at, layout.scales_row);
    copy(piece.row_scales, rows, layout.row_scales_at, layout.row_scales_row);
  }
  for (auto& s : streams) s.wait();
}

}  // namespace imago::kernels::cuda
