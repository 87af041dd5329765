#include <algorithm>
#include <cstring>
#include <vector>

#include "math/plain.h"

namespace imago::math::plain {

namespace {

// Four floats, the vector that every 64-bit machine of ours has. A tile of 4 × 8 sums is 8 of them; with the row of B
// and one value of A they fit the 16 registers of x86-64.
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

}  // namespace

void gemm(const GemmArgs& g) {
  // Both as [line][depth]: rows of op(A), columns of op(B).
  const Strided a = g.transpose_a == Transpose::no ? Strided{g.a, g.a_stride, 1} : Strided{g.a, 1, g.a_stride};
  const Strided b = g.transpose_b == Transpose::no ? Strided{g.b, 1, g.b_stride} : Strided{g.b, g.b_stride, 1};
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

}  // namespace imago::math::plain
