// Block formats in a store: the store adds shapes, caching and loading to the encoders of codec.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "testing/copies.h"

namespace imago {
namespace {

using testing::copy;

WeightStore random_block_store(std::size_t rows, std::size_t cols) {
  WeightStore store(rows, cols);
  store.he_randomize(3, cols);
  return store;
}

TEST(BlockVersions, AreTheBytesOfTheEncoder) {
  const WeightStore store = random_block_store(4, 512);
  for (const BlockFormatInfo& block : kBlockFormats) {
    std::vector<std::byte> packed(packed_bytes(block.id, store.count()));
    encode(block.id, store.master(), packed);
    const auto version = store.morph(block.id);
    EXPECT_EQ(copy(version->codes()), packed) << block.name;
    EXPECT_TRUE(version->scales().empty()) << block.name;
    EXPECT_EQ(version->scale(), 1.0f) << block.name;
    EXPECT_EQ(version->bytes(), packed.size()) << block.name;
    EXPECT_EQ(store.morph(block.id), version) << block.name;

    std::vector<float> decoded(store.count());
    decode(block.id, packed, decoded);
    EXPECT_EQ(store.active(block.id), decoded) << block.name;
    // Ternary blocks that take the maximum of 256 weights as their scale reach 0.74; everything else is above.
    EXPECT_GT(store.distortion(block.id).cosine, 0.7) << block.name;
  }
}

TEST(BlockVersions, RowsMustBeWholeBlocks) {
  for (const BlockFormatInfo& block : kBlockFormats) {
    const std::size_t values = static_cast<std::size_t>(block.values);
    const WeightStore store(values, values / 2);  // whole blocks in all, but not in a row
    try {
      store.morph(block.id);
      ADD_FAILURE() << block.name;
    } catch (const ShapeError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(std::to_string(values / 2)), std::string::npos) << text;
      EXPECT_NE(text.find(std::to_string(values)), std::string::npos) << text;
    }
  }
}

TEST(BlockVersions, LoadedBlocksAreKeptVerbatim) {
  const WeightStore original = random_block_store(2, 256);
  for (const BlockFormatInfo& block : kBlockFormats) {
    const std::vector<std::byte> packed = copy(original.morph(block.id)->codes());
    WeightStore store(2, 256);
    store.set_loaded(block.id, packed, std::span<const float>());
    EXPECT_EQ(copy(store.morph(block.id)->codes()), packed) << block.name;
    EXPECT_EQ(copy(store.master()), original.active(block.id)) << block.name;
    EXPECT_THROW(store.set_loaded(block.id, packed, std::vector<float>{1}), ShapeError) << block.name;
    EXPECT_THROW(store.set_loaded(block.id, std::span(packed).first(packed.size() - 1), std::span<const float>()),
                 ShapeError)
        << block.name;
  }
}

TEST(BlockVersions, AReleasedStoreServesItsBlocks) {
  WeightStore store = random_block_store(2, 256);
  const std::vector<float> active = store.active(BlockFormat::q4_0);
  store.release_master(BlockFormat::q4_0);
  EXPECT_EQ(store.bytes(), 2 * 8 * 18u);
  EXPECT_EQ(store.active(BlockFormat::q4_0), active);
  EXPECT_EQ(copy(store.master()), active);
}

TEST(BlockVersions, EmptyStore) {
  WeightStore store(0, 256);
  for (const BlockFormatInfo& block : kBlockFormats) EXPECT_TRUE(store.active(block.id).empty()) << block.name;
}

TEST(BlockVersions, NegativeMastersStayWhenBlocksAreTrained) {
  WeightStore store(1, 256);
  store.apply_gradients(std::vector<float>(256, 1.0f), 1, 0, BlockFormat::q8_0);
  EXPECT_TRUE(std::ranges::all_of(store.master(), [](float w) { return w == -1; }));
  EXPECT_NE(store.find(BlockFormat::q8_0), nullptr);
}

}  // namespace
}  // namespace imago
