#pragma once

// Products with experts that the device itself has chosen: which matrices are read is known to no host.

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"
#include "imago/format.h"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/matrix.h"
#include "kernels/cuda/ops.h"
#include "kernels/ops_args.h"

namespace imago::kernels::cuda {

/// What one expert multiplies with: y = activation(matrix x + bias), with `up` also · (up x + up_bias).
struct ExpertMatrices {
  Planes matrix, up;
  const float* bias = nullptr;     ///< null: none
  const float* up_bias = nullptr;  ///< likewise
};

/// The experts of a layer. All arrays are in device memory; the matrices of all experts have one format, and so have
/// gate and up.
struct ExpertLayer {
  const ExpertMatrices* experts;
  std::size_t rows, cols;
  Activation activation = Activation::linear;
  bool gated = false;
};

// ---- few tokens

/// Row i of the result is what expert chosen[i] makes of row i / share of the activations; chosen null: expert
/// i % count_of_experts, such as the heads of tokens. It is stored as floats, or quantized, or both.
struct ExpertProducts {
  ExpertLayer layer;
  const std::int32_t* chosen;
  std::size_t count_of_experts = 1;    ///< not read unless chosen is null
  const float* x = nullptr;            ///< [count / share][cols]
  const std::int8_t* q = nullptr;      ///< the same quantized, like Activations::q; null: products are in float32
  const float2_pod* scales = nullptr;  ///< scales of q
  float* y = nullptr;                  ///< [count][rows]
  Int8Out int8 = {};
  std::size_t x_stride = 0, y_stride = 0;  ///< from a row of floats to the next; 0: cols, rows
  std::size_t count, share;
};

/// Queues them. Every row of an expert's matrix is read once for each row of the result.
void multiply_experts(Format format, const ExpertProducts& products, Stream& stream);

/// Whether products of experts in this format may read quantized activations.
bool takes_int8(Format format);

// ---- many tokens: on tensor cores, by tiles of the rows that go to one expert

/// Rows of one expert, which lie together; the last tile of an expert has fewer than the others.
struct ExpertTile {
  std::int32_t expert;  ///< negative: the tile does not exist
  std::int32_t first, count;
};

/// The tiles of some rows: how many rows they have, and how many tiles any choice of experts needs at most.
struct ExpertTiles {
  std::uint32_t rows = 0, most = 0;
};
inline constexpr std::size_t kFewestTileRows = 32;
ExpertTiles expert_tiles(std::size_t rows, std::size_t experts);

/// Row i of tile t reads row sources[t · tiles.rows + i] of x; negative: there is no such row. y has the rows in the
/// order of the experts.
struct ExpertMatMul {
  ExpertLayer layer;
  ExpertTiles tiles;
  const ExpertTile* list;       ///< [tiles.most]
  const std::int32_t* sources;  ///< [tiles.most · tiles.rows]
  const float* x;
  std::size_t x_rows;
  float* y;
};

/// Queues them with bfloat16 activations, like `multiply` with Arithmetic::fast.
void matmul_experts(Format format, const ExpertMatMul& products, ProductScratch& scratch, Stream& stream);

/// Whether there are such products for this format.
bool takes_expert_tiles(Format format);

}  // namespace imago::kernels::cuda
