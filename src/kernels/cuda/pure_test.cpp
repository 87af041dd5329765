// The parts of the GPU's operations that need no GPU: roundings, the order of candidates, how attention is split.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

#include "imago/codec.h"
#include "kernels/cuda/attention_wide.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/sample_order.h"
#include "kernels/cuda/scalar_ops.h"
#include "kernels/ops.h"
#include "testing/gpu_samples.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Blocks of 32: ordinary ones, halves, extremes, and any bits.
std::vector<float> blocks_of_all_kinds() {
  std::vector<float> x = testing::gaussian(32 * 200, 1);
  for (int i = 0; i < 32; ++i) x.push_back(static_cast<float>(i) - 15.5f);
  for (int i = 0; i < 32; ++i) x.push_back(i == 5 ? kInfinity : 1.0f);
  for (int i = 0; i < 32; ++i) x.push_back(i == 5 ? std::nanf("") : 1.0f);
  for (int i = 0; i < 32; ++i) x.push_back(1e-41f * static_cast<float>(i));
  for (int i = 0; i < 32; ++i) x.push_back(i % 2 == 0 ? 3.4e38f : -3.4e38f);
  for (int i = 0; i < 32; ++i) x.push_back(0);
  std::mt19937 generator(2);
  for (int i = 0; i < 32 * 200; ++i) {
    x.push_back(float_of_bits(static_cast<std::uint32_t>(generator()) & 0xBFFFFFFFu));  // finite, of all sizes
  }
  return x;
}

TEST(CudaRounding, Int8HasTheLargestAt127) {
  const std::vector<float> x = blocks_of_all_kinds();
  const std::vector<Int8Block> wanted = testing::int8_of_gpu(x);
  for (std::size_t b = 0; b < wanted.size(); ++b) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, magnitude_bits(x[b * 32 + i]));
    const BlockScale block = int8_scale(largest);
    ASSERT_EQ(block.scale, wanted[b].scale) << b;
    for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(int8_code(x[b * 32 + i], block), wanted[b].q[i]) << b << ", " << i;
  }
}

TEST(CudaRounding, Q8_0IsThatOfTheHost) {
  const std::vector<float> x = blocks_of_all_kinds();
  std::vector<std::byte> packed(x.size() / 32 * 34);
  encode(BlockFormat::q8_0, x, packed);
  for (std::size_t b = 0; b < x.size() / 32; ++b) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, magnitude_bits(q8_0_finite(x[b * 32 + i])));
    const BlockScale block = q8_0_scale(largest);
    std::uint16_t scale;
    std::memcpy(&scale, packed.data() + b * 34, 2);
    ASSERT_EQ(half_of_float(std::min(block.scale, 65504.0f)), scale) << b;
    for (std::size_t i = 0; i < 32; ++i) {
      ASSERT_EQ(q8_0_code(q8_0_finite(x[b * 32 + i]), block), static_cast<std::int8_t>(packed[b * 34 + 2 + i]))
          << b << ", " << i;
    }
  }
}

TEST(CudaActivation, IsThatOfTheHost) {
  const std::vector<float> x = testing::gaussian(2000, 3, 5);
  std::vector<float> wanted(x.size());
  for (int f = 0; f < kActivationCount; ++f) {
    activate(static_cast<Activation>(f), x, wanted);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float got = activation_of(static_cast<Activation>(f), x[i]);
      ASSERT_NEAR(got, wanted[i], 2e-6 * std::max(1.0f, std::fabs(wanted[i]))) << "function " << f << " of " << x[i];
    }
  }
}

TEST(CudaSampleOrder, KeysRiseWithLogits) {
  const float rising[] = {-kInfinity, -3e38f, -1, -1e-40f, 0, 1e-40f, 1, 1.0000001f, 3e38f, kInfinity};
  for (std::size_t i = 1; i < std::size(rising); ++i)
    EXPECT_LT(order_key(rising[i - 1]), order_key(rising[i])) << rising[i];
  EXPECT_EQ(order_key(-0.0f), order_key(0.0f));
  EXPECT_FALSE(is_candidate(-kInfinity));
  EXPECT_FALSE(is_candidate(std::nanf("")));
  EXPECT_TRUE(is_candidate(-3e38f));
}

TEST(CudaSampleOrder, CutsKeepWhatComesFirst) {
  const Cut cut{order_key(1.0f), 7};
  EXPECT_TRUE(cut.has(order_key(2.0f), 100));
  EXPECT_TRUE(cut.has(order_key(1.0f), 7));
  EXPECT_FALSE(cut.has(order_key(1.0f), 8));
  EXPECT_FALSE(cut.has(order_key(0.5f), 0));
  EXPECT_TRUE(cut_below(cut, 0.5).has(order_key(1.0f), 7));
  EXPECT_FALSE(cut_below(cut, 0.5).has(order_key(0.9f), 7));
  const double above = 1.5 + 1e-12;  // between two floats
  EXPECT_FALSE(cut_below(cut, above).has(order_key(1.5f), 0));
  EXPECT_TRUE(cut_below(cut, above).has(order_key(std::nextafter(1.5f, 2.0f)), 99));
  EXPECT_TRUE(cut_below(cut, 1.5).has(order_key(1.5f), 99));
}

TEST(CudaSampleOrder, StepsCoverAllBits) {
  std::uint32_t key = 0, id = 0;
  for (int step = 0; step < kDigitSteps; ++step) {
    const DigitStep digit = digit_step(step);
    EXPECT_LE(1u << digit.bits, kSampleBins);
    const std::uint32_t bits = ((1u << digit.bits) - 1) << digit.shift;
    std::uint32_t& all = digit.of_id ? id : key;
    EXPECT_EQ(all & bits, 0u);
    all |= bits;
  }
  EXPECT_EQ(key, ~0u);
  EXPECT_EQ(id, ~0u);
  EXPECT_EQ(distance_bin(3, 3), 0u);
  EXPECT_EQ(distance_bin(2, 3), 32u);
  EXPECT_EQ(distance_bin(-3e38f, 3e38f), kSampleBins - 1);
}

SplitNeeds tile_needs(std::uint32_t row_tiles, const std::vector<std::uint32_t>& rows) {
  SplitNeeds needs{.warps = 8,
                   .row_tiles = row_tiles,
                   .takes_turns = true,
                   .rows_per_tile = 8,
                   .ring_bytes = 9472,
                   .x_bytes = 640,
                   .multiprocessors = 132};
  std::copy(rows.begin(), rows.end(), needs.rows);
  return needs;
}

TEST(CudaMatVecSplit, WarpRowsTakeEveryTileRowOnce) {
  for (const std::uint32_t row_tiles : {1u, 2u, 5u, 8u, 9u, 10u, 22u, 28u, 43u, 56u, 120u}) {
    for (const std::vector<std::uint32_t>& rows : {std::vector<std::uint32_t>{1},
                                                   {7},
                                                   {4096},
                                                   {14336},
                                                   {1, 1, 1},
                                                   {4096, 1024, 1024},
                                                   {2111, 2113, 5, 40000},
                                                   {2'000'000}}) {
      const MatVecSplit split = split_matvec(tile_needs(row_tiles, rows));
      ASSERT_NE(split.column_warps, 0u);
      EXPECT_GE(split.column_warps * split.warp_tiles, row_tiles);
      EXPECT_LT((split.column_warps - 1) * split.warp_tiles, row_tiles);
      EXPECT_LE(split.column_warps * split.block_rows, 8u);
      // Activations of very long rows leave no room for a second block.
      const std::uint32_t together = row_tiles > 43 ? 1 : 16 / (split.column_warps * split.block_rows);
      EXPECT_LE(together * (split.bytes + kSplitReservedBytes), kSplitSharedBytes);
      EXPECT_EQ(split.warp_rows, split.blocks * split.block_rows);
      std::vector<std::vector<int>> taken;
      for (const std::uint32_t count : rows) taken.emplace_back((count + 7) / 8);
      std::uint32_t most = 0;
      for (std::uint32_t warp_row = 0; warp_row < split.warp_rows; ++warp_row) {
        std::uint32_t all = 0;
        for (std::size_t p = 0; p < rows.size(); ++p) {
          const WarpTileRows own(split, static_cast<int>(p), warp_row);
          for (std::uint32_t i = 0; i < own.count; ++i) ++taken[p].at(own.first + i * split.warp_rows);
          all += own.count;
        }
        most = std::max(most, all);
      }
      EXPECT_EQ(most, split.most_tile_rows);
      EXPECT_GE(split.own_bytes, split.sums_at + most * 8 * 4) << row_tiles;
      for (const std::vector<int>& product : taken) {
        EXPECT_EQ(std::count(product.begin(), product.end(), 1), static_cast<std::ptrdiff_t>(product.size()));
      }
    }
  }
}

TEST(CudaMatVecSplit, WarpsOfARowAreNeighbours) {
  for (std::uint32_t row_tiles = 1; row_tiles <= 56; ++row_tiles) {
    const MatVecSplit split = split_matvec(tile_needs(row_tiles, {4096}));
    ASSERT_NE(split.column_warps, 0u) << row_tiles;
    for (std::uint32_t warp = 0; warp < split.column_warps * split.block_rows; ++warp) {
      EXPECT_EQ(block_row_of(split, warp), warp / split.column_warps);
    }
  }
}

TEST(CudaMatVecSplit, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(split_matvec(tile_needs(8 * 40, {1})).column_warps, 0u);  // activations
  SplitNeeds rows = tile_needs(9, {1});
  rows.takes_turns = false;
  EXPECT_EQ(split_matvec(rows).column_warps, 0u);
  EXPECT_EQ(split_matvec(tile_needs(8, {0})).column_warps, 0u);
}

TEST(CudaAttentionPlan, PartsCoverAllKeys) {
  for (const std::uint32_t splits : {1u, 2u, 5u, 16u, 132u}) {
    for (std::uint32_t keys = 1; keys < 70000; keys += keys < 3000 ? 1 : 997) {
      const std::uint32_t per_split = keys_per_split(keys, splits);
      ASSERT_EQ(per_split % kDecodeKeys, 0u);
      ASSERT_GE(per_split * splits, keys);
      if (keys <= kUnsplitKeys) {
        ASSERT_GE(per_split, keys);
      }
    }
  }
}

TEST(CudaAttentionPlan, WindowsEndAtTheToken) {
  EXPECT_EQ(first_key(0, 0), 0u);
  EXPECT_EQ(first_key(99, 0), 0u);
  EXPECT_EQ(first_key(99, 100), 0u);
  EXPECT_EQ(first_key(100, 100), 1u);
  EXPECT_EQ(first_key(5, 1), 5u);
}

TEST(CudaAttentionPlan, KeysThatTokensSeeAreThoseOfTheHost) {
  for (const std::uint32_t window : {0u, 1u, 2u, 7u, 8u, 200u}) {
    for (std::int32_t position = 0; position < 50; ++position) {
      const auto place = static_cast<std::size_t>(position);
      const SeenKeys back = seen_keys(position, 0, window);
      const KeyRange causal = causal_range(place, 0, window);
      EXPECT_EQ(static_cast<std::size_t>(back.first), causal.first);
      EXPECT_EQ(static_cast<std::size_t>(back.last) + 1, causal.first + causal.count);
      for (const std::int32_t end : {position + 1, position + 3, 50}) {
        const SeenKeys both = seen_keys(position, end, window);
        const KeyRange around = range_around(place, static_cast<std::size_t>(end), window);
        EXPECT_EQ(static_cast<std::size_t>(both.first), around.first) << position << " of " << end << ", " << window;
        EXPECT_EQ(static_cast<std::size_t>(both.last) + 1, around.first + around.count);
      }
    }
  }
  EXPECT_EQ(seen_keys(-1, 0, 5).last, -1);
  EXPECT_EQ(seen_keys(-1, 9, 5).last, -1);
}

TEST(CudaAttentionPlan, SplitsOfWideHeadsAreAllOfTheirKeysOnce) {
  for (const std::uint32_t splits : {1u, 2u, 7u, 66u, 132u}) {
    for (const std::int32_t first : {0, 17}) {
      for (std::int32_t keys = 1; keys < 20000; keys += keys < 300 ? 1 : 997) {
        std::int32_t next = first;
        for (std::uint32_t split = 0; split < splits; ++split) {
          const SeenKeys own = wide_split({first, first + keys - 1}, split, splits);
          if (own.first > own.last) continue;
          ASSERT_EQ(own.first, next);
          next = own.last + 1;
        }
        ASSERT_EQ(next, first + keys) << splits << " splits of " << keys;
      }
    }
  }
}

TEST(CudaAttentionPlan, WideHeadsHaveRoom) {
  // 16 and 64 heads of a token share each row that is read.
  EXPECT_EQ(wide_plan(1, 1, 16, 576, 8000).chunks, 1u);
  EXPECT_EQ(wide_plan(1, 1, 16, 576, 8000).tall, 1u);
  EXPECT_EQ(wide_plan(1, 1, 128, 576, 8000).chunks, 2u);
  EXPECT_EQ(wide_plan(1, 1, 128, 576, 8000).splits, kDecodeBlocks / 2);
  EXPECT_EQ(wide_plan(1, 1, 128, 576, 128).splits, 2u);
  EXPECT_EQ(wide_plan(1, 1, 128, 576, 60).partial_bytes, 0u);
  EXPECT_EQ(wide_plan(1, 1, 128, 576, 8000).partial_bytes, std::size_t{128} * 66 * 578 * sizeof(float));
  // Prompts: a tile is filled with tokens, and its keys are not split.
  EXPECT_EQ(wide_plan(100, 1, 16, 576, 0).tokens_of_tile, 4u);
  EXPECT_EQ(wide_plan(100, 1, 16, 576, 0).tiles, 25u);
  EXPECT_EQ(wide_plan(100, 2, 20, 512, 0).tokens_of_tile, 3u);
  EXPECT_EQ(wide_plan(100, 1, 128, 576, 0).splits, 1u);
  // What a block of Hopper, and for latent attention of Ampere, may have besides its static memory.
  EXPECT_LE(wide_shared_bytes(512, false, kWideTall) + 2048, 227u * 1024);
  EXPECT_LE(wide_shared_bytes(576, true, kWideTall) + 2048, 163u * 1024);
}

TEST(CudaAttentionPlan, OneBlockForEachMultiprocessor) {
  for (const std::size_t cluster_keys : {std::size_t{0}, kClusterKeysF16}) {
    EXPECT_EQ(decode_plan(1, 8, 4, 128, cluster_keys).splits, 1u);
    EXPECT_EQ(decode_plan(1, 8, 4, 32768, cluster_keys).splits, 16u);
    EXPECT_EQ(decode_plan(1, 8, 16, 32768, cluster_keys).items, 16u);
    EXPECT_EQ(decode_plan(64, 8, 4, 32768, cluster_keys).splits, 1u);
  }
  EXPECT_EQ(decode_plan(1, 8, 4, 300, 0).splits, 3u);
  EXPECT_EQ(decode_plan(1, 8, 4, 300, kClusterKeys).splits, 4u);
  EXPECT_EQ(decode_plan(1, 8, 4, 2048, kClusterKeysF16).splits, 8u);
  EXPECT_TRUE(decode_plan(1, 8, 4, 2048, kClusterKeysF16).is_cluster);
  EXPECT_FALSE(decode_plan(100, 8, 4, 2048, kClusterKeysF16).is_cluster);
  EXPECT_GE(decode_scratch_bytes(decode_plan(1, 8, 4, 32768, 0), 4, 128), 8 * 16 * 4 * 130 * sizeof(float));
}

}  // namespace
}  // namespace imago::kernels::cuda
