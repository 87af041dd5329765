#include "kernels/cuda/matrix.h"

#include <algorithm>
#include <array>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/cuda/host_layout.h"

namespace imago::kernels::cuda {

namespace {

constexpr std::size_t kPieceBytes = 16 << 20;  // of pinned memory, twice: enough for the bus to be busy

/// Lays out rows [first, last) side by side in `memory`, plane after plane, on all threads.
PlaneTargets lay_out_piece(const PackedMatrix& source, const PlaneLayout& layout, std::size_t first, std::size_t last,
                           std::byte* memory) {
  const std::size_t rows = last - first;
  const auto targets_from = [&](std::size_t row) {
    std::byte* codes = memory;
    std::byte* high = codes + rows * layout.codes_row;
    std::byte* scales = high + rows * layout.high_row;
    std::byte* supers = scales + rows * layout.scales_row;
    std::byte* row_scales =
        memory + (rows * (layout.codes_row + layout.high_row + layout.scales_row + layout.supers_row) + 3) / 4 * 4;
    return PlaneTargets{codes + row * layout.codes_row, high + row * layout.high_row, scales + row * layout.scales_row,
                        supers + row * layout.supers_row,
                        reinterpret_cast<float*>(row_scales + row * layout.row_scales_row)};
  };
  parallel_for_dynamic(rows, std::max<std::size_t>(1, (std::size_t{64} << 10) / layout.codes_row),
                       [&](std::size_t begin, std::size_t end) {
                         lay_out_rows(source, layout, first + begin, first + end, targets_from(begin));
                       });
  return targets_from(0);
}

}  // namespace

GpuMatrix::GpuMatrix(std::shared_ptr<Device> device, const PackedMatrix& source) : format_(source.format) {
  const PlaneLayout layout(source);
  data_ = device->allocate(layout.bytes);
  planes_ = layout.planes(data_.address());
  const std::size_t row_bytes =
      layout.codes_row + layout.high_row + layout.scales_row + layout.supers_row + layout.row_scales_row;
  const std::size_t piece_rows = std::clamp<std::size_t>(kPieceBytes / row_bytes, 1, source.rows);

  // Two pieces take turns: one travels while the other is laid out. An event would tell when a half is free again;
  // waiting for a stream of its own does the same.
  std::array<imago::cuda::Stream, 2> streams{imago::cuda::Stream(device), imago::cuda::Stream(device)};
  std::array<imago::cuda::PinnedMemory, 2> memory;
  for (auto& half : memory) {
    half = imago::cuda::PinnedMemory(piece_rows * row_bytes + 4);
    if (piece_rows == source.rows) break;
  }
  std::size_t turn = 0;
  for (std::size_t first = 0; first < source.rows; first += piece_rows, turn ^= 1) {
    const std::size_t last = std::min(first + piece_rows, source.rows);
    streams[turn].wait();
    const PlaneTargets piece = lay_out_piece(source, layout, first, last, memory[turn].bytes().data());
    const auto copy = [&](const void* from, std::size_t plane_at, std::size_t plane_row) {
      streams[turn].copy_in({static_cast<const std::byte*>(from), (last - first) * plane_row},
                            data_.address() + plane_at + first * plane_row);
    };
    copy(piece.codes, layout.codes_at, layout.codes_row);
    copy(piece.high, layout.high_at, layout.high_row);
    copy(piece.scales, layout.scales_at, layout.scales_row);
    copy(piece.supers, layout.supers_at, layout.supers_row);
    copy(piece.row_scales, layout.row_scales_at, layout.row_scales_row);
  }
  for (auto& s : streams) s.wait();
}

}  // namespace imago::kernels::cuda
