#include "kernels/matrix_activations.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/line_vector.h"
#include "base/parallel.h"
#include "kernels/ops_table.h"

namespace imago::kernels {

namespace {

struct Memory {
  LineVector<float> x, sums, block_sums, scales, totals, tile_totals;
  LineVector<std::int8_t> q;
  LineVector<std::int32_t> code_sums, block_code_sums;
  LineVector<std::uint16_t> tiles;
};
Memory& thread_memory() {
  thread_local Memory memory;
  return memory;
}

std::size_t padded(std::size_t cols) noexcept { return (cols + kBlockColumns - 1) / kBlockColumns * kBlockColumns; }

/// Calls body(token) on all threads.
template <class Body>
void for_each_token(const Activations& view, Body&& body) {
  constexpr std::size_t kTokenGrain = 4;  // tokens that are worth a thread: some microseconds
  parallel_rows(view.batch, 1, body, kTokenGrain);
}

void pad(std::span<const float> x, std::size_t cols, Activations& view) {
  float* to = sized(thread_memory().x, view.batch * view.stride).data();
  for_each_token(view, [&](std::size_t t) {
    std::copy_n(x.data() + t * cols, cols, to + t * view.stride);
    std::fill_n(to + t * view.stride + cols, view.stride - cols, 0.0f);
  });
  view.x = to;
}

/// Kernels would otherwise add two sums and change the sign for every block, token and panel.
void sum_blocks(const float* sums, std::size_t blocks, float* to) noexcept {
  for (std::size_t b = 0; b < blocks; ++b) to[b] = -(sums[2 * b] + sums[2 * b + 1]);
}

void sum_groups(std::size_t groups, Activations& view) {
  float* sums = sized(thread_memory().sums, view.batch * view.stride / 16).data();
  float* block_sums = sized(thread_memory().block_sums, view.batch * view.stride / 32).data();
  for_each_token(view, [&](std::size_t t) {
    for (std::size_t g = 0; g < groups; ++g) {
      const float* x = view.x + t * view.stride + g * 16;
      double sum = 0;
      for (std::size_t i = 0; i < 16; ++i) sum += static_cast<double>(x[i]);
      sums[t * view.stride / 16 + g] = static_cast<float>(sum);
    }
    sum_blocks(sums + t * view.stride / 16, groups / 2, block_sums + t * view.stride / 32);
  });
  view.sums = sums;
  view.block_sums = block_sums;
}

/// Columns that are worth a thread, in whole blocks: two microseconds.
constexpr std::size_t kQuantizedColumns = 1024;

void quantize(std::span<const float> x, std::size_t cols, Activations& view) {
  Memory& memory = thread_memory();
  const std::size_t stride = view.stride;
  std::int8_t* q = sized(memory.q, view.batch * stride).data();
  float* scales = sized(memory.scales, view.batch * stride / 32).data();
  std::int32_t* code_sums = sized(memory.code_sums, view.batch * stride / 16).data();
  std::int32_t* block_code_sums = sized(memory.block_code_sums, view.batch * stride / 32).data();
  float* sums = sized(memory.sums, view.batch * stride / 16).data();
  float* block_sums = sized(memory.block_sums, view.batch * stride / 32).data();
  const OpKernel<QuantizeArgs>& op = choose_op<QuantizeArgs>(allowed_cpu_features());
  // A single token too is work for all: the others would wait for it.
  const std::size_t pieces = (cols + kQuantizedColumns - 1) / kQuantizedColumns;
  const auto quantize_piece = [&](std::size_t i) {
    const std::size_t token = i / pieces, first = i % pieces * kQuantizedColumns;
    const std::size_t count = std::min(kQuantizedColumns, cols - first), to = token * stride + first;
    op.run({x.data() + token * cols + first, count, q + to, scales + to / 32, sums + to / 16});
    sum_blocks(sums + to / 16, padded(count) / 32, block_sums + to / 32);
    for (std::size_t g = 0; g < padded(count) / 16; ++g) {
      const std::int8_t* codes = q + to + g * 16;
      std::int32_t sum = 0;
      for (int c = 0; c < 16; ++c) sum += codes[c];
      code_sums[to / 16 + g] = sum;
      if (g % 2 == 1) block_code_sums[to / 32 + g / 2] = code_sums[to / 16 + g - 1] + sum;
    }
  };
  parallel_rows(view.batch * pieces, cols, quantize_piece, kQuantizedColumns);
  view.q = q;
  view.scales = scales;
  view.code_sums = code_sums;
  view.block_code_sums = block_code_sums;
  view.sums = sums;
  view.block_sums = block_sums;
}

void make_tiles(std::span<const float> x, std::size_t cols, const MatrixFunctions& functions, Activations& view) {
  const std::size_t groups = (view.batch + kTileTokens - 1) / kTileTokens;
  view.tiles_apart = (cols + kTileColumns - 1) / kTileColumns * functions.tile_terms * kTileTokens * kTileColumns;
  std::uint16_t* tiles = sized(thread_memory().tiles, groups * view.tiles_apart).data();
  for_each_token(view, [&](std::size_t t) {
    std::uint16_t* to = tiles + t / kTileTokens * view.tiles_apart + t % kTileTokens * kTileColumns;
    functions.tile_token({x.data() + t * cols, cols, to});
  });
  view.tiles = tiles;
}

/// Sums of whole tokens, from those of 16 columns.
void sum_tokens(std::size_t groups, Activations& view) {
  float* totals = sized(thread_memory().totals, view.batch).data();
  for_each_token(view, [&](std::size_t t) {
    double sum = 0;
    for (std::size_t g = 0; g < groups; ++g) sum += static_cast<double>(view.sums[t * view.stride / 16 + g]);
    totals[t] = static_cast<float>(sum);
  });
  view.totals = totals;
}

/// Sums of tokens as the tiles have them, rounded to bfloat16.
void sum_tiles(std::size_t cols, std::size_t terms, Activations& view) {
  float* totals = sized(thread_memory().tile_totals, view.batch).data();
  for_each_token(view, [&](std::size_t t) {
    const std::uint16_t* tile = view.tiles + t / kTileTokens * view.tiles_apart + t % kTileTokens * kTileColumns;
    double sum = 0;
    const std::size_t tiles = (cols + kTileColumns - 1) / kTileColumns * terms;
    for (std::size_t i = 0; i < tiles; ++i, tile += kTileTokens * kTileColumns) {
      for (std::size_t c = 0; c < kTileColumns; ++c) {
        sum += static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(tile[c]) << 16));
      }
    }
    totals[t] = static_cast<float>(sum);
  });
  view.tile_totals = totals;
}

}  // namespace

void ActivationNeeds::add(const MatrixKernel& kernel, std::size_t batch) noexcept {
  const bool by_tiles = kernel.takes_tiles(batch), offsets = kernel.functions.centre != 0;
  tile_totals = tile_totals || (by_tiles && offsets);
  totals = totals || (!by_tiles && offsets);
  if (by_tiles) {
    tiles = &kernel.functions;
  } else if (kernel.arithmetic == Arithmetic::exact) {
    floats = true;
    sums = sums || kernel.functions.needs_sums;
  } else {
    int8 = true;
  }
}

PreparedActivations::PreparedActivations(std::span<const float> x, std::size_t batch, std::size_t cols,
                                         const ActivationNeeds& needs) {
  view_.stride = padded(cols) + (batch > 1 ? kTokenGap : 0);
  view_.batch = batch;
  if (needs.int8) quantize(x, cols, view_);
  if (needs.tiles != nullptr) make_tiles(x, cols, *needs.tiles, view_);
  if (needs.floats) {
    view_.x = x.data();
    if (view_.stride != cols) pad(x, cols, view_);
    if (needs.sums) sum_groups(padded(cols) / 16, view_);
  }
  if (needs.totals) sum_tokens(padded(cols) / 16, view_);
  if (needs.tile_totals) sum_tiles(cols, needs.tiles->tile_terms, view_);
}

}  // namespace imago::kernels
