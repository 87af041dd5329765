#pragma once

// Products on tensor cores: which block computes which tile, how activations lie, and how sums leave the block. The
// multiplication itself is in matmul_hopper.cuh (wgmma) and matmul_kernel.cuh (mma.sync, every chip since Ampere). Both
// stream activations through a ring of stages in shared memory and decode weights in registers.
//
// Weights are the left operand: their rows are the M of the instructions, tokens the N. Of each 16 columns, a thread of
// the tensor cores' layout holds 4, namely 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, where t is one of 4. Sums do not depend
// on the order of their terms, so columns are permuted: of each chunk of 128 columns, thread t gets the 32 of group t.
// It loads and decodes one group by itself, and nothing passes between threads or through shared memory. Activations
// are permuted in the same way when they are rounded to bfloat16 (panel_column).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/expert_products.h"
#include "kernels/cuda/layout.h"

namespace imago::kernels::cuda {

inline constexpr int kChunk = 128;  // columns of one stage: 4 groups, 8 instructions of 16 columns
inline constexpr int kPanel = 64;   // columns of a panel of activations: 128 bytes, the widest row that can be swizzled
inline constexpr int kConsumers = 256;  // threads that multiply: two warpgroups

/// The column of a chunk whose value is stored at `position` (both 0 … 127).
__host__ __device__ constexpr int panel_column(int position) {
  const int step = position / 16;
  const int half = position / 8 % 2;
  const int t = position / 2 % 4;
  return 32 * t + 4 * step + 2 * half + position % 2;
}

/// Activations in bfloat16: panels of 64 columns, each [capacity tokens][64]. The 16-byte vectors of a token's row are
/// swizzled as tensor cores expect it, vector i of token n at i ^ n % 8. A tile of tokens is contiguous in a panel.
struct ActivationPanels {
  const std::uint16_t* values = nullptr;
  std::uint32_t capacity = 0;  // a multiple of the tile
  std::uint32_t tokens = 0;
};

struct MatMulArgs {
  Planes weights, up;
  bool gated = false;  // the rows of a tile are half from `weights`, half from `up`
  ActivationPanels x;
  std::uint32_t rows = 0;
  std::uint32_t chunks = 0, split_chunks = 0;  // of a row; of one split: gridDim.z blocks share the columns
  float* y = nullptr;
  std::size_t y_stride = 0;
  GpuEpilogue epilogue;
  float* partial = nullptr;  // [weights, up if gated][split][token][row] sums; null: finished outputs go to y
  // Products with experts: tile blockIdx.x of tokens takes matrices and biases of its own. y has rows without gaps.
  const ExpertMatrices* experts = nullptr;  // null: `weights` and `up` for all
  const ExpertTile* tiles = nullptr;
  std::uint32_t stages = 0;
};

/// What one block computes: kRows rows (gated: half of each matrix) by kTokens tokens. kExpertsT: with an expert, which
/// costs registers that other products need.
template <int kN, bool kExpertsT>
struct MatMulTile {
  static constexpr bool kExperts = kExpertsT;
  static constexpr int kRows = 128;
  static constexpr int kTokens = kN;
  static constexpr int kStageBytes = kN * kChunk * 2;
  // Sums are exchanged through shared memory, [token][row]. A stride of 4 more than the rows puts the 32 threads of a
  // warp, which write sums of 8 rows and 4 pairs of tokens, on 32 different banks.
  static constexpr int kSumStride = kRows + 4;
  static constexpr int kSumBytes = kN * kSumStride * 4;

  /// First output row of this block.
  __device__ static std::uint32_t first_row(const MatMulArgs& a) { return blockIdx.y * (a.gated ? kRows / 2 : kRows); }
  /// The matrix and the row that row `r` of the tile comes from. Rows past the end repeat the last one.
  __device__ static Planes planes(const MatMulArgs& a, int r) {
    const bool is_up = a.gated && r >= kRows / 2;
    if constexpr (kExperts) {
      const ExpertMatrices& expert = a.experts[a.tiles[blockIdx.x].expert];
      return is_up ? expert.up : expert.matrix;
    } else {
      return is_up ? a.up : a.weights;
    }
  }
  __device__ static std::uint32_t source_row(const MatMulArgs& a, int r) {
    const std::uint32_t row = first_row(a) + (a.gated ? r % (kRows / 2) : r);
    return row < a.rows ? row : a.rows - 1;
  }
};

/// Writes the sums of a tile, [token][kSumStride] in shared memory, to y or to the partial sums. All kConsumers threads
/// call it with their number.
template <class Tile>
__device__ __forceinline__ void store_tile(const MatMulArgs& a, const float* sums, int thread) {
  const std::uint32_t first_row = Tile::first_row(a);
  const std::uint32_t tile_rows = a.gated ? Tile::kRows / 2 : Tile::kRows;
  const std::uint32_t row_count = min(tile_rows, a.rows - first_row);
  std::uint32_t first_token = blockIdx.x * Tile::kTokens;
  std::uint32_t tokens = min(static_cast<std::uint32_t>(Tile::kTokens), a.x.tokens - first_token);
  const float* bias = a.epilogue.bias;
  const float* up_bias = nullptr;
  if constexpr (Tile::kExperts) {
    const ExpertTile own = a.tiles[blockIdx.x];
    first_token = static_cast<std::uint32_t>(own.first);
    tokens = static_cast<std::uint32_t>(own.count);
    bias = a.experts[own.expert].bias;
    up_bias = a.experts[own.expert].up_bias;
  }
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
      float factor = a.gated ? from[tile_rows + r] : 1.0f;
      if constexpr (Tile::kExperts) {
        if (up_bias != nullptr) factor += up_bias[row];
        if (a.gated) factor = up_of(a.epilogue.activation, factor);
      }
      *to =
          finished(from[r], bias == nullptr ? 0.0f : bias[row], factor, a.epilogue.accumulate ? *to : 0.0f, a.epilogue);
    }
  }
}

// ---- launch

/// Tokens of a tile of 128 rows. Each weight is decoded once for all of them, so a tile has as many as registers hold
/// sums for.
enum class MatMulShape : std::uint8_t {
  wide,    ///< 256; Hopper only
  square,  ///< 128
  half,    ///< 64
  narrow,  ///< 32; two blocks on a multiprocessor, to saturate memory
};

/// Threads of a block. Also tells the host which of the two kernels was compiled for the chip.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr int kMatMulThreads = kConsumers + 128;
#else
inline constexpr int kMatMulThreads = kConsumers;
#endif
inline constexpr int kHopperThreads = kConsumers + 128;

/// Queues the product with gridDim.z = splits. REQUIRES: everything in `args` but `stages` is set. Form: decode.cuh.
template <class Form>
void launch_matmul(const MatMulArgs& args, MatMulShape shape, std::uint32_t splits, cudaStream_t stream);

}  // namespace imago::kernels::cuda
