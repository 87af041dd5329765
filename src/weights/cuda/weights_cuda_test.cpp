#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "device/cuda/stream.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "kernels/cuda/matrix.h"
#include "testing/gpu.h"
#include "weights/views.h"

namespace imago {
namespace {

class WeightsOnGpu : public testing::GpuTest {
 protected:
  std::vector<float> downloaded(const Buffer& buffer) const {
    std::vector<float> values(buffer.size() / sizeof(float));
    device()->download(buffer, 0, std::as_writable_bytes(std::span(values)));
    return values;
  }
};

std::vector<Scheme> schemes() {
  std::vector<Scheme> all;
  for (const DTypeInfo& type : kDTypes) all.emplace_back(type.id);
  for (const BlockFormatInfo& block : kBlockFormats) all.emplace_back(block.id);
  Scheme rows(DType::int8);
  rows.granularity = Granularity::row;
  Scheme groups(DType::int4);
  groups.granularity = Granularity::group;
  groups.group = 32;
  all.insert(all.end(), {rows, groups});
  return all;
}

WeightStore random_store(std::size_t rows, std::size_t cols) {
  WeightStore store(rows, cols);
  store.randomize(7, 0.5f);
  return store;
}

/// Relative to the largest: a device may fuse what the host rounds twice.
double worst_error(std::span<const float> expected, std::span<const float> got) {
  double largest = 1e-30, error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(static_cast<double>(expected[i])));
    error = std::max(error, std::fabs(static_cast<double>(expected[i]) - static_cast<double>(got[i])));
  }
  return error / largest;
}

TEST_F(WeightsOnGpu, DequantizedIsWhatTheHostDecodes) {
  for (const Scheme& scheme : schemes()) {
    const WeightStore store = random_store(9, 512);
    const std::vector<float> expected = store.active(scheme);
    const std::vector<float> got = downloaded(*store.dequantized_for(device(), scheme));
    ASSERT_EQ(got.size(), expected.size());
    EXPECT_LE(worst_error(expected, got), 1e-6) << scheme.format.name() << ", uploaded packed and decoded";
    store.sync_to(device(), scheme);
    EXPECT_GT(store.device_bytes(*device()), expected.size() * sizeof(float)) << "both forms";
  }
}

TEST_F(WeightsOnGpu, RowsOfAnyLengthGoThere) {
  for (const std::size_t cols : {1, 3, 31, 33, 100, 257}) {
    for (const DType dtype :
         {DType::float32, DType::bfloat16, DType::int8, DType::int4, DType::ternary, DType::binary}) {
      const WeightStore store = random_store(5, cols);
      store.sync_to(device(), dtype);
      const std::vector<float> got = downloaded(*store.dequantized_for(device(), dtype));
      EXPECT_LE(worst_error(store.active(dtype), got), 1e-6) << info(dtype).name << " with " << cols << " columns";
    }
  }
}

TEST_F(WeightsOnGpu, AreMadeOnceAndDroppedWithTheMaster) {
  WeightStore store = random_store(8, 256);
  store.sync_to(device(), DType::int8);
  const auto form = device_matrix(store, DType::int8, {.first = 0, .rows = 8, .cols = 256}, device());
  EXPECT_EQ(form, device_matrix(store, DType::int8, {.first = 0, .rows = 8, .cols = 256}, device()));
  EXPECT_EQ(form->format(), Format(DType::int8));
  EXPECT_EQ(store.device_bytes(*device()), form->bytes());
  const auto before = store.dequantized_for(device(), DType::int8);
  const std::vector<float> held = downloaded(*before);

  store.edit_master()[0] = 100;
  EXPECT_EQ(store.device_bytes(*device()), 0u);
  EXPECT_EQ(downloaded(*before), held) << "what a caller holds stays what it was";
  const std::vector<float> after = downloaded(*store.dequantized_for(device(), DType::int8));
  EXPECT_LE(worst_error(store.active(DType::int8), after), 1e-6);
  EXPECT_NEAR(after[0], 100, 1);

  store.sync_to(device(), DType::int8);
  store.release_device(*device());
  EXPECT_EQ(store.device_bytes(*device()), 0u);
  store.sync_to(device(), DType::int8);
  store.sync_to(device(), BlockFormat::q4_0);
  const std::size_t both = store.device_bytes(*device());
  store.release_master(DType::int8);
  EXPECT_LT(store.device_bytes(*device()), both);
  EXPECT_GT(store.device_bytes(*device()), 0u) << "that of the scheme stays";
}

TEST_F(WeightsOnGpu, SyncMakesTheViewsOfTheLayer) {
  WeightStore store({.rows = 1, .cols = 64 * 256 + 64, .matrices = {{{64, 256}}}, .vectors = 64});
  store.randomize(3, 0.5f);
  store.sync_to(device(), BlockFormat::q4_0);
  const std::size_t used = store.device_bytes(*device());
  device_matrix(store, BlockFormat::q4_0, {.first = 0, .rows = 64, .cols = 256}, device());
  device_weights(store, BlockFormat::q4_0, 64 * 256, 64, device());
  EXPECT_EQ(store.device_bytes(*device()), used) << "a copy that nobody reads";
  EXPECT_LT(used, 64 * 256 + 64 * sizeof(float)) << "packed";
}

TEST_F(WeightsOnGpu, TheHostCopyCanGoAndComeBack) {
  for (const Scheme& scheme : schemes()) {
    WeightStore store = random_store(9, 512);
    const std::vector<float> expected = store.active(scheme);
    std::vector<std::byte> codes;
    if (const auto version = store.morph(scheme)) codes.assign(version->codes().begin(), version->codes().end());
    store.release_host(device(), scheme);
    EXPECT_EQ(store.bytes(), 0u) << scheme.format.name();
    EXPECT_FALSE(store.has_master());
    EXPECT_GT(store.device_bytes(*device()), 0u);
    const std::vector<float> there = downloaded(*store.dequantized_for(device(), scheme));
    EXPECT_EQ(store.bytes(), 0u) << "decoding on the device needs nothing here";
    EXPECT_LE(worst_error(expected, there), 1e-6) << scheme.format.name();

    EXPECT_LE(worst_error(expected, store.master()), 1e-6) << scheme.format.name();
    EXPECT_TRUE(store.has_master());
    if (!codes.empty() && !scheme.format.is_block()) {
      const auto version = store.morph(scheme);
      const bool signless_zero = scheme.format == Format(DType::fp4);  // the GPU's levels of fp4 are integers
      EXPECT_TRUE(signless_zero || std::ranges::equal(version->codes(), codes))
          << scheme.format.name() << ": other codes";
      EXPECT_EQ(store.active(scheme), expected) << scheme.format.name();
    }
    EXPECT_LE(worst_error(expected, downloaded(*store.dequantized_for(device(), scheme))), 1e-6);
  }
}

TEST_F(WeightsOnGpu, SlicesThatCoverTheStoreAreItsOnlyCopy) {
  WeightStore store = random_store(1, 64 * 32 + 64);  // a matrix and its bias, as layers keep them
  const std::vector<float> expected = store.active(DType::int8);
  device_matrix(store, DType::int8, {.first = 0, .rows = 64, .cols = 32}, device());
  device_weights(store, DType::int8, 64 * 32, 64, device());
  const std::size_t used = store.device_bytes(*device());
  store.release_host(device(), DType::int8);
  EXPECT_EQ(store.device_bytes(*device()), used) << "no form of the whole was made";
  EXPECT_EQ(store.bytes(), 0u);
  EXPECT_LE(worst_error(expected, store.master()), 1e-6);

  WeightStore gap = random_store(2, 64);
  device_matrix(gap, DType::int8, {.first = 0, .rows = 1, .cols = 64}, device());
  const std::vector<float> all = gap.active(DType::int8);
  gap.release_host(device(), DType::int8);
  EXPECT_LE(worst_error(all, gap.master()), 1e-6);
}

TEST_F(WeightsOnGpu, ReleasedWeightsCanBeReplacedAndFreed) {
  WeightStore store = random_store(4, 64);
  const std::vector<float> expected = store.active(BlockFormat::q8_0);
  store.release_host(device(), BlockFormat::q8_0);
  store.release_device(*device());
  EXPECT_EQ(store.device_bytes(*device()), 0u);
  EXPECT_LE(worst_error(expected, store.master()), 1e-6) << "downloaded before it was freed";

  store.release_host(device(), BlockFormat::q8_0);
  store.set_master(std::vector<float>(4 * 64, 3.0f));
  EXPECT_EQ(store.device_bytes(*device()), 0u);
  EXPECT_EQ(store.master()[5], 3.0f);
  store.release_host(device(), DType::float32);
  EXPECT_EQ(store.master()[7], 3.0f);
  store.release_host(device(), DType::int8);
  store.set_scale(DType::int8, 0.5f);
  EXPECT_EQ(store.active(DType::int8)[0], 3.0f);
}

TEST_F(WeightsOnGpu, LargeStoresComeBackInParts) {
  const WeightStore reference = random_store(1030, 16384);  // 64 MiB decoded: two parts
  WeightStore store = random_store(1030, 16384);
  store.release_host(device(), BlockFormat::q4_0);
  EXPECT_LE(worst_error(reference.active(BlockFormat::q4_0), store.master()), 1e-6);
}

TEST_F(WeightsOnGpu, TheHostIsNoAccelerator) {
  WeightStore store = random_store(2, 32);
  EXPECT_THROW(store.sync_to(host_device(), DType::int8), UsageError);
  EXPECT_THROW(store.dequantized_for(nullptr, DType::int8), UsageError);
  EXPECT_THROW(store.release_host(host_device(), DType::int8), UsageError);
  EXPECT_THROW(store.sync_to(device(), BlockFormat::q4_k), ShapeError) << "rows of 32 do not fill a block of 256";
  EXPECT_TRUE(store.has_master());
}

}  // namespace
}  // namespace imago
