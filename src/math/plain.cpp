// Plain C++: a product, and convolutions as products with the columns of their input.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/cpu.h"
#include "math/backend.h"

namespace imago::math {

namespace {

// Four floats: a vector that every 64-bit machine has. A tile of 4 × 8 sums is 8 of them; with the row of B and one
// value of A they fit the 16 registers of x86-64.
using Lanes = float __attribute__((vector_size(16)));
constexpr std::size_t kTileRows = 4;
constexpr std::size_t kTileCols = 8;

// Blocks are copied into tile order, which also undoes transposition: A's block (64 KiB) stays in the second-level
// cache, B's (256 KiB) is read once per tile row from there or the third.
constexpr std::size_t kBlockRows = 64;
constexpr std::size_t kBlockCols = 256;
constexpr std::size_t kBlockDepth = 256;

struct Strided {
  const float* values;
  std::size_t row_step, col_step;
  float at(std::size_t row, std::size_t col) const { return values[row * row_step + col * col_step]; }
};

/// Strips of `width` lines (rows of A, columns of B), each [depth][width], zeros past the last line.
void pack(const Strided& from, std::size_t first_line, std::size_t lines, std::size_t first_depth, std::size_t depth,
          std::size_t width, float* to) {
  for (std::size_t strip = 0; strip < lines; strip += width) {
    const std::size_t count = std::min(width, lines - strip);
    for (std::size_t p = 0; p < depth; ++p, to += width) {
      for (std::size_t i = 0; i < count; ++i) to[i] = from.at(first_line + strip + i, first_depth + p);
      std::fill(to + count, to + width, 0.0f);
    }
  }
}

/// The sums of one tile, [kTileRows][kTileCols].
void multiply_tile(const float* a, const float* b, std::size_t depth, float* sums) {
  Lanes low[kTileRows] = {};
  Lanes high[kTileRows] = {};
  for (std::size_t p = 0; p < depth; ++p, a += kTileRows, b += kTileCols) {
    Lanes b_low;
    Lanes b_high;
    std::memcpy(&b_low, b, sizeof b_low);
    std::memcpy(&b_high, b + 4, sizeof b_high);
    for (std::size_t i = 0; i < kTileRows; ++i) {
      low[i] += a[i] * b_low;
      high[i] += a[i] * b_high;
    }
  }
  for (std::size_t i = 0; i < kTileRows; ++i) {
    std::memcpy(sums + i * kTileCols, &low[i], sizeof low[i]);
    std::memcpy(sums + i * kTileCols + 4, &high[i], sizeof high[i]);
  }
}

void store_tile(const float* sums, std::size_t rows, std::size_t cols, float* c, std::size_t stride, bool add) {
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      float& to = c[i * stride + j];
      to = add ? to + sums[i * kTileCols + j] : sums[i * kTileCols + j];
    }
  }
}

void plain_gemm(const GemmArgs& g) {
  // Both as [line][depth]: rows of op(A), columns of op(B).
  const Strided a =
      g.a.transpose == Transpose::no ? Strided{g.a.values, g.a.stride, 1} : Strided{g.a.values, 1, g.a.stride};
  const Strided b =
      g.b.transpose == Transpose::no ? Strided{g.b.values, 1, g.b.stride} : Strided{g.b.values, g.b.stride, 1};
  thread_local std::vector<float> a_block(kBlockRows * kBlockDepth);
  thread_local std::vector<float> b_block(kBlockCols * kBlockDepth);
  float sums[kTileRows * kTileCols];

  for (std::size_t col = 0; col < g.n; col += kBlockCols) {
    const std::size_t cols = std::min(kBlockCols, g.n - col);
    for (std::size_t p = 0; p < g.k; p += kBlockDepth) {
      const std::size_t depth = std::min(kBlockDepth, g.k - p);
      const bool add = p > 0 || g.write == Write::add;
      pack(b, col, cols, p, depth, kTileCols, b_block.data());
      for (std::size_t row = 0; row < g.m; row += kBlockRows) {
        const std::size_t rows = std::min(kBlockRows, g.m - row);
        pack(a, row, rows, p, depth, kTileRows, a_block.data());
        for (std::size_t j = 0; j < cols; j += kTileCols) {
          for (std::size_t i = 0; i < rows; i += kTileRows) {
            multiply_tile(a_block.data() + i * depth, b_block.data() + j * depth, depth, sums);
            store_tile(sums, std::min(kTileRows, rows - i), std::min(kTileCols, cols - j),
                       g.c + (row + i) * g.c_stride + col + j, g.c_stride, add);
          }
        }
      }
    }
  }
}

}  // namespace

// ---- Convolutions. The taps of each output become a column, [C·K][outputs], for a few rows of outputs at a time, so
// that the columns stay in the cache whatever the size of the image.

namespace {

// 1 MiB of columns: within the second-level cache of today's cores.
constexpr std::size_t kColumnValues = 1u << 18;

/// Rows of outputs (along the width) first … first + count, depth and height counted as one.
struct Rows {
  std::size_t first, count;
};

std::size_t rows_per_block(const ConvolutionExtents& e) {
  const std::size_t row_values = e.channels * kernel_values(e) * e.out[2];
  return std::clamp<std::size_t>(kColumnValues / row_values, 1, e.out[0] * e.out[1]);
}

/// The input that tap `k` of output `o` reads on an axis, or -1 outside the input.
std::ptrdiff_t input_at(const ConvolutionExtents& e, int axis, std::size_t o, std::size_t k) {
  const std::size_t at = o * e.stride[axis] + k;
  return at >= e.padding[axis] && at - e.padding[axis] < e.in[axis] ? static_cast<std::ptrdiff_t>(at - e.padding[axis])
                                                                    : -1;
}

/// Calls body(column values of one row, input row or null, tap on the width) for each row of each tap.
template <class Value, class Body>
void for_each_row(const ConvolutionExtents& e, Rows rows, Value* x, float* columns, Body&& body) {
  for (std::size_t c = 0; c < e.channels; ++c) {
    for (std::size_t kd = 0; kd < e.kernel[0]; ++kd) {
      for (std::size_t kh = 0; kh < e.kernel[1]; ++kh) {
        for (std::size_t kw = 0; kw < e.kernel[2]; ++kw) {
          for (std::size_t row = rows.first; row < rows.first + rows.count; ++row, columns += e.out[2]) {
            const std::ptrdiff_t d = input_at(e, 0, row / e.out[1], kd);
            const std::ptrdiff_t h = input_at(e, 1, row % e.out[1], kh);
            const std::size_t line =
                (c * e.in[0] + static_cast<std::size_t>(d)) * e.in[1] + static_cast<std::size_t>(h);
            body(columns, d < 0 || h < 0 ? nullptr : x + line * e.in[2], kw);
          }
        }
      }
    }
  }
}

/// The outputs of a row whose tap is inside the input.
struct Inside {
  std::size_t begin, end;
};
Inside outputs_inside(const ConvolutionExtents& e, std::size_t tap) {
  const std::size_t stride = e.stride[2];
  const std::size_t pad = e.padding[2];
  const std::size_t begin = pad > tap ? (pad - tap + stride - 1) / stride : 0;
  const std::size_t end = e.in[2] + pad > tap ? (e.in[2] + pad - tap - 1) / stride + 1 : 0;
  return {std::min(begin, e.out[2]), std::clamp(end, std::min(begin, e.out[2]), e.out[2])};
}

void gather(const ConvolutionExtents& e, Rows rows, const float* x, float* columns) {
  for_each_row(e, rows, x, columns, [&](float* to, const float* from, std::size_t tap) {
    const Inside inside = from != nullptr ? outputs_inside(e, tap) : Inside{0, 0};
    std::fill(to, to + inside.begin, 0.0f);
    for (std::size_t o = inside.begin; o < inside.end; ++o) to[o] = from[o * e.stride[2] + tap - e.padding[2]];
    std::fill(to + inside.end, to + e.out[2], 0.0f);
  });
}

void scatter_add(const ConvolutionExtents& e, Rows rows, float* columns, float* x) {
  for_each_row(e, rows, x, columns, [&](const float* from, float* to, std::size_t tap) {
    if (to == nullptr) return;
    const Inside inside = outputs_inside(e, tap);
    for (std::size_t o = inside.begin; o < inside.end; ++o) to[o * e.stride[2] + tap - e.padding[2]] += from[o];
  });
}

/// Calls body(sample, rows, columns) for all outputs, block by block, in order.
template <class Body>
void for_each_block(const ConvolutionExtents& e, Body&& body) {
  thread_local std::vector<float> columns;
  const std::size_t block = rows_per_block(e);
  const std::size_t rows = e.out[0] * e.out[1];
  columns.resize(std::max(columns.size(), e.channels * kernel_values(e) * block * e.out[2]));
  for (std::size_t sample = 0; sample < e.batch; ++sample) {
    for (std::size_t row = 0; row < rows; row += block) {
      body(sample, Rows{row, std::min(block, rows - row)}, columns.data());
    }
  }
}

}  // namespace

void clear_x(const ConvolutionArgs& args) {
  const ConvolutionExtents& e = args.extents;
  for (std::size_t sample = 0; sample < e.batch; ++sample) {
    std::fill_n(args.x + sample * args.x_sample, e.channels * in_values(e), 0.0f);
  }
}

void convolve_by_columns(const ConvolutionArgs& args, void (*gemm)(const GemmArgs& args)) {
  const ConvolutionExtents& e = args.extents;
  const std::size_t taps = e.channels * kernel_values(e);
  if (args.kind == ConvolutionKind::backward_data) clear_x(args);
  for_each_block(e, [&](std::size_t sample, Rows rows, float* columns) {
    const std::size_t outputs = rows.count * e.out[2];
    float* const x = args.x + sample * args.x_sample;
    float* const y = args.y + sample * args.y_sample + rows.first * e.out[2];
    switch (args.kind) {
      case ConvolutionKind::forward:
        gather(e, rows, x, columns);
        gemm({.m = e.filters,
              .n = outputs,
              .k = taps,
              .a = {args.w, args.w_filter},
              .b = {columns, outputs},
              .c = y,
              .c_stride = out_values(e)});
        break;
      case ConvolutionKind::backward_data:
        gemm({.m = taps,
              .n = outputs,
              .k = e.filters,
              .a = {args.w, args.w_filter, Transpose::yes},
              .b = {y, out_values(e)},
              .c = columns,
              .c_stride = outputs});
        scatter_add(e, rows, columns, x);
        break;
      case ConvolutionKind::backward_weights:
        gather(e, rows, x, columns);
        gemm({.m = e.filters,
              .n = taps,
              .k = outputs,
              .a = {y, out_values(e)},
              .b = {columns, outputs, Transpose::yes},
              .c = args.w,
              .c_stride = args.w_filter,
              .write = sample == 0 && rows.first == 0 ? Write::replace : Write::add});
        break;
    }
  });
}

// ---- backends

const Backend& plain_backend() noexcept {
  static constexpr Backend kBackend{.name = "plain", .gemm = plain_gemm, .convolve = [](const ConvolutionArgs& args) {
                                      convolve_by_columns(args, plain_gemm);
                                    }};
  return kBackend;
}

const Backend& best_backend() {
  const Backend* onednn = onednn_backend();
  return onednn != nullptr && allowed_cpu_features() != kNoFeatures ? *onednn : plain_backend();
}

}  // namespace imago::math
