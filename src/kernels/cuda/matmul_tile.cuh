#pragma once

// The frame of a product by tensor cores: which block computes what, and how sums leave it. The multiplication itself
// is in matmul_hopper.cuh (wgmma) and matmul_mma.cuh (mma.sync, every chip since Ampere); both keep weights in
// registers.
//
// Weights are the left operand, rows of it the M of the instructions, tokens their N. A thread of the tensor cores'
// layout holds of each 16 columns 4, namely 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, t being one of 4. As sums do not care
// for the order of their terms, columns are renamed: of each 128 columns ("chunk") thread t gets the 32 of group t,
// whole, so that it loads and decodes one group of codes by itself, and nothing has to pass between threads or through
// shared memory. Activations are brought into the same order when they are rounded to bfloat16 (panel_column).

#include <cstdint>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/layout.h"

namespace imago::kernels::cuda {

inline constexpr int kChunk = 128;  // columns of one step: 4 groups, 8 instructions of 16 columns
inline constexpr int kPanel = 64;   // columns of a panel of activations: 128 bytes, the widest row that can be swizzled
inline constexpr int kConsumers = 256;  // threads that multiply: two warpgroups

/// The column of a chunk whose value stands at `position` (both 0 … 127).
__host__ __device__ constexpr int panel_column(int position) {
  const int step = position / 16;
  const int half = position / 8 % 2;
  const int t = position / 2 % 4;
  return 32 * t + 4 * step + 2 * half + position % 2;
}

/// Activations in bfloat16: panels of 64 columns, each [capacity tokens][64], the 16-byte pieces of a token's row
/// exchanged as the tensor cores' swizzle wants it: piece i of token n at i ^ n % 8. Any tile of tokens is one
/// contiguous piece of a panel.
struct TokenPanels {
  const std::uint16_t* values = nullptr;
  std::uint32_t capacity = 0;  // a multiple of every tile
  std::uint32_t tokens = 0;
};

struct MatMulArgs {
  Planes weights, up;
  bool gated = false;  // rows of `weights` and of `up` in one block, half each
  TokenPanels x;
  std::uint32_t rows = 0;
  std::uint32_t chunks = 0, split_chunks = 0;  // of a row; of one block: gridDim.z blocks share a row
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue;
  float* partial = nullptr;  // [weights, up if gated][split][token][row]: sums as they are; null: finished ones go to y
  std::uint32_t stages = 0;
};

/// What one block computes: kRows rows (gated: half of each matrix) by kTokens tokens.
template <int kN>
struct MatMulTile {
  static constexpr int kRows = 128;
  static constexpr int kTokens = kN;
  static constexpr int kStageBytes = kN * kChunk * 2;
  // Sums leave through shared memory, [token][row]. 4 more than rows: the 32 threads of a warp that write sums of 8
  // rows and 4 pairs of tokens then meet 32 banks.
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kSumBytes = kN * kSumStride * 4;

  /// First output row of this block.
  __device__ static std::uint32_t first_row(const MatMulArgs& a) { return blockIdx.y * (a.gated ? kRows / 2 : kRows); }
  /// Where row `r` of the tile lies: in which matrix, and which of its rows. Behind the last row: the last once more.
  __device__ static Planes planes(const MatMulArgs& a, int r) { return a.gated && r >= kRows / 2 ? a.up : a.weights; }
  __device__ static std::uint32_t source_row(const MatMulArgs& a, int r) {
    const std::uint32_t row = first_row(a) + (a.gated ? r % (kRows / 2) : r);
    return row < a.rows ? row : a.rows - 1;
  }
};

/// Sums of a tile, [token][kSumStride] in shared memory, to y or the partial sums. All kConsumers threads, `thread`
/// each.
template <class Tile>
__device__ __forceinline__ void store_tile(const MatMulArgs& a, const float* sums, int thread) {
  const std::uint32_t first_row = Tile::first_row(a);
  const std::uint32_t first_token = blockIdx.x * Tile::kTokens;
  const std::uint32_t tile_rows = a.gated ? Tile::kRows / 2 : Tile::kRows;
  const std::uint32_t row_count = min(tile_rows, a.rows - first_row);
  const std::uint32_t tokens = min(static_cast<std::uint32_t>(Tile::kTokens), a.x.tokens - first_token);
  const std::size_t plane = static_cast<std::size_t>(a.x.tokens) * a.rows;
  float* const partial = a.partial == nullptr ? nullptr : a.partial + blockIdx.z * plane;
  for (std::uint32_t token = thread / 32; token < tokens; token += kConsumers / 32) {
    const float* const from = sums + token * Tile::kSumStride;
    for (std::uint32_t r = thread % 32; r < row_count; r += 32) {
      const std::uint32_t row = first_row + r;
      if (partial != nullptr) {
        float* const to = partial + static_cast<std::size_t>(first_token + token) * a.rows + row;
        to[0] = from[r];
        if (a.gated) to[gridDim.z * plane] = from[tile_rows + r];
        continue;
      }
      float* const to = a.y + (first_token + token) * a.y_stride + row;
      const float bias = a.epilogue.bias == nullptr ? 0.0f : a.epilogue.bias[row];
      *to =
          finished(from[r], bias, a.gated ? from[tile_rows + r] : 1.0f, a.epilogue.accumulate ? *to : 0.0f, a.epilogue);
    }
  }
}

}  // namespace imago::kernels::cuda
