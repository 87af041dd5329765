#include "kernels/matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/checked.h"
#include "base/line_vector.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "kernels/codec.h"
#include "kernels/folder_table.h"
#include "kernels/ops_table.h"

namespace imago::kernels {

namespace {

std::vector<MatrixKernel> make_matrix_table() {
  std::vector<MatrixKernel> table;
  for (const Format format : kFormats) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::fast}) {
      for (const Folder& f : kFolders) {
        // Asking a folder for its functions already runs code that is compiled for its instruction set.
        if (!within(f.needs, host_cpu_features())) continue;
        const MatrixFunctions functions = f.matrix(format, arithmetic == Arithmetic::fast);
        if (functions.pack == nullptr) continue;
        table.push_back(
            {fmt::format("{}/{}", format.name(), f.name), format, arithmetic, f.needs, f.panel_rows, functions});
      }
    }
  }
  return table;
}

const MatrixKernel& require_kernel(Format format, Arithmetic arithmetic) {
  const MatrixKernel* kernel = choose_matrix_kernel(format, arithmetic, allowed_cpu_features());
  if (kernel == nullptr) {
    throw UnsupportedError(fmt::format("{} has no product with {} activations", format.name(),
                                       arithmetic == Arithmetic::fast ? "int8" : "float32"));
  }
  return *kernel;
}

/// Whether weights [begin, end) are all 0. REQUIRES: codes of at most 8 bits.
bool are_zero(const PackedMatrix& m, std::size_t begin, std::size_t end, float zero_point) {
  const auto width = static_cast<std::size_t>(bits(m.format.dtype()));
  const auto zero = static_cast<unsigned>(zero_point);
  for (std::size_t at = begin * width; at < end * width; at += width) {
    const unsigned byte = std::to_integer<unsigned>(m.packed[at / 8]);
    if ((byte >> (8 - width - at % 8) & ((1u << width) - 1)) != zero) return false;
  }
  return true;
}

/// The scales of a matrix whose products read codes less `centre`, so that sums have to cancel. Rows and groups of
/// zeros, whose derived scale is 1, get the smallest there is: nothing is then left of their sums.
std::vector<float> scales_that_cancel(const PackedMatrix& m) {
  std::vector<float> scales(m.scales.values.begin(), m.scales.values.end());
  const std::size_t first = m.first, last = m.first + m.rows * m.cols;
  for (std::size_t i = first / m.scales.group; i * m.scales.group < last; ++i) {
    if (imago::detail::effective_scale(scales[i]) != 1) continue;
    const std::size_t begin = std::max(first, i * m.scales.group), end = std::min(last, (i + 1) * m.scales.group);
    const float zero_point = m.scales.zero_points.empty() ? 0.0f : m.scales.zero_points[i];
    if (are_zero(m, begin, end, zero_point)) scales[i] = std::numeric_limits<float>::min();
  }
  return scales;
}

}  // namespace

std::span<const MatrixKernel> all_matrix_kernels() {
  static const std::vector<MatrixKernel> table = make_matrix_table();
  return table;
}

const MatrixKernel* choose_matrix_kernel(Format format, Arithmetic arithmetic, CpuFeatures features) {
  for (const MatrixKernel& row : all_matrix_kernels()) {
    if (row.format == format && row.arithmetic == arithmetic && within(row.needs, features)) return &row;
  }
  return nullptr;
}

std::size_t columns_per_scale(const PackedMatrix& m) {
  if (!m.format.has_scales()) return 0;
  const std::size_t group = m.scales.group;
  if (m.first + m.rows * m.cols <= group) return 0;
  if (group % m.cols == 0 && m.first % m.cols == 0) return 0;
  const bool is_group = group == 32 || group == 64 || group == 128;
  if (!is_group || m.cols % group != 0 || m.first % group != 0) {
    throw ShapeError(fmt::format(
        "a scale for {} weights does not fit rows of {}: groups are 32, 64 or 128 that divide the row, or whole rows",
        group, m.cols));
  }
  return group;
}

void check_matrix(const PackedMatrix& m) {
  if (m.rows == 0 || m.cols == 0) throw ShapeError(fmt::format("a matrix of {} × {} has no products", m.rows, m.cols));
  const std::size_t end = checked_add(m.first, checked_mul(m.rows, m.cols, "a matrix"), "a matrix");
  checked_mul(end, sizeof(double), "a matrix");  // no index of a kernel can wrap
  const std::size_t block = static_cast<std::size_t>(m.format.block_values());
  if (m.cols % block != 0 || m.first % block != 0) {
    throw ShapeError(fmt::format("rows of {} columns from weight {} on are not made of blocks of {}, which hold {}",
                                 m.cols, m.first, m.format.name(), block));
  }
  if (const std::size_t wanted = packed_bytes(m.format, end); m.packed.size() < wanted) {
    throw ShapeError(
        fmt::format("{} weights in {} take {} bytes, not {}", end, m.format.name(), wanted, m.packed.size()));
  }
  check_scales(m.format, end, m.scales);
}

RunMatrix::RunMatrix(const PackedMatrix& source, Arithmetic arithmetic)
    : RunMatrix(require_kernel(source.format, arithmetic), source) {}

RunMatrix::RunMatrix(const MatrixKernel& kernel, const PackedMatrix& source)
    : kernel_(&kernel), rows_(source.rows), cols_(source.cols) {
  if (!(kernel.format == source.format)) {
    throw UsageError(fmt::format("{} cannot multiply weights in {}", kernel.name, source.format.name()));
  }
  check_matrix(source);
  scale_group_ = columns_per_scale(source);
  const std::size_t panel_bytes = kernel.functions.panel_bytes(cols_, scale_group_);
  data_ = host_device()->allocate(checked_mul(panels(), panel_bytes, "a matrix"));
  const bool cancels = kernel.functions.centre != 0;
  const std::vector<float> own = cancels ? scales_that_cancel(source) : std::vector<float>();
  const std::span<const float> scales = cancels ? std::span(own) : source.scales.values;
  const MatrixSource plain{.packed = source.packed.data(),
                           .first = source.first,
                           .scales = source.format.has_scales() ? scales.data() : nullptr,
                           .scale_group = source.scales.group,
                           .rows = rows_,
                           .cols = cols_,
                           .zero_points = zero_points_of(source.scales)};
  // In small pieces: who meets pages that the system must clear first is late, and the others need not wait.
  constexpr std::size_t kPieceBytes = 512 << 10;
  parallel_for_dynamic(panels(), std::max<std::size_t>(1, kPieceBytes / panel_bytes),
                       [&](std::size_t begin, std::size_t end) {
                         kernel.functions.pack({plain, scale_group_, data_.address(), begin, end});
                       });
  if (!cancels || scale_group_ != 0) return;
  row_offsets_.resize(rows_);
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::size_t i = (source.first + row * cols_) / source.scales.group;
    const float zero_point = source.scales.zero_points.empty() ? 0.0f : source.scales.zero_points[i];
    row_offsets_[row] = imago::detail::effective_scale(scales[i]) * (kernel.functions.centre - zero_point);
  }
}

std::size_t RunMatrix::panels() const noexcept { return (rows_ + kernel_->panel_rows - 1) / kernel_->panel_rows; }

void RunMatrix::run_panels(const Activations& in, std::size_t begin, std::size_t end, float* y,
                           const Epilogue& epilogue, const float* up, bool many) const {
  thread_local LineVector<std::byte> memory;
  const MatrixFunctions& functions = kernel_->functions;
  const bool by_tiles = in.tiles != nullptr && functions.tile_matmul != nullptr;
  const std::size_t batch = many ? std::max(in.batch, kManyTokens) : in.batch;
  const std::size_t scratch = (by_tiles ? functions.tile_scratch_bytes : functions.scratch_bytes)(cols_, batch);
  ProductArgs args{.run = data_.address(),
                   .rows = rows_,
                   .cols = cols_,
                   .scale_group = scale_group_,
                   .first_panel = begin,
                   .last_panel = end,
                   .in = in,
                   .y = y,
                   .y_stride = rows_,
                   .bias = epilogue.bias.empty() ? nullptr : epilogue.bias.data(),
                   .row_offsets = row_offsets_.empty() ? nullptr : row_offsets_.data(),
                   .far_ahead = prefetch_distance(),
                   .scratch = sized(memory, scratch).data(),
                   .many = many};
  if (by_tiles) args.in.totals = in.tile_totals;
  (by_tiles ? functions.tile_matmul : batch == 1 ? functions.matvec : functions.matmul)(args);
  if (epilogue.activation == Activation::linear && up == nullptr) return;
  const OpKernel<ActivateArgs>& op = choose_op<ActivateArgs>(allowed_cpu_features());
  const std::size_t first_row = begin * kernel_->panel_rows;
  const std::size_t count = std::min(end * kernel_->panel_rows, rows_) - first_row;
  for (std::size_t t = 0; t < in.batch; ++t) {
    float* part = y + t * rows_ + first_row;
    op.run({part, up == nullptr ? nullptr : up + t * rows_ + first_row, part, count, epilogue.activation});
  }
}

}  // namespace imago::kernels
