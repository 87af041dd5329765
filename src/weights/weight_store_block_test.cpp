// Block formats in a store: the store adds shapes, caching and loading to the encoders of codec.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "testing/copies.h"
#include "weights/views.h"

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

// ---- arrays of matrices and vectors

/// Twice a matrix of 4 rows of 256 weights and a vector of 10.
constexpr WeightShape kParts{.rows = 1, .cols = 2 * 1034, .matrices = {{{4, 256}}}, .vectors = 10, .repeats = 2};

/// The packed array, row by row: the blocks of both matrices, then the two vectors.
std::vector<std::byte> pack_parts(BlockFormat format, std::span<const float> weights) {
  std::vector<std::byte> packed, vectors;
  for (std::size_t repeat = 0; repeat < 2; ++repeat) {
    const std::span<const float> part = weights.subspan(1034 * repeat, 1034);
    for (std::size_t row = 0; row < 4; ++row) {
      std::vector<std::byte> blocks(packed_bytes(format, 256));
      quantize_row(format, part.subspan(256 * row, 256), blocks);
      packed.insert(packed.end(), blocks.begin(), blocks.end());
    }
    const auto bytes = std::as_bytes(part.last(10));
    vectors.insert(vectors.end(), bytes.begin(), bytes.end());
  }
  packed.insert(packed.end(), vectors.begin(), vectors.end());
  return packed;
}

std::vector<float> unpack_parts(BlockFormat format, std::span<const float> weights) {
  std::vector<float> decoded(weights.begin(), weights.end());
  for (std::size_t repeat = 0; repeat < 2; ++repeat) {
    for (std::size_t row = 0; row < 4; ++row) {
      const std::span<float> values = std::span(decoded).subspan(1034 * repeat + 256 * row, 256);
      std::vector<std::byte> blocks(packed_bytes(format, 256));
      quantize_row(format, values, blocks);
      dequantize_row(format, blocks, values);
    }
  }
  return decoded;
}

TEST(BlockArrays, VectorsStayFloat32AfterAllBlocks) {
  WeightStore store(kParts);
  store.he_randomize(3, 256);
  for (const BlockFormatInfo& block : kBlockFormats) {
    const auto version = store.morph(block.id);
    EXPECT_EQ(copy(version->codes()), pack_parts(block.id, store.master())) << block.name;
    const std::vector<float> wanted = unpack_parts(block.id, store.master());
    EXPECT_EQ(store.active(block.id), wanted) << block.name;
    // Ranges that begin and end anywhere, over the seams too.
    for (const auto& [first, count] :
         {std::pair<std::size_t, std::size_t>{0, 2068}, {1000, 60}, {1030, 5}, {1024, 10}, {2060, 8}}) {
      std::vector<float> slice(count);
      decode_slice(store, block.id, first, slice);
      EXPECT_TRUE(std::ranges::equal(slice, std::span(wanted).subspan(first, count))) << block.name << " " << first;
    }
  }
}

TEST(BlockArrays, MatricesBehindVectorsAreMultipliedAsBlocks) {
  WeightStore store(kParts);
  store.he_randomize(3, 256);
  const std::vector<float> x(256, 0.5f);
  for (const BlockFormatInfo& block : kBlockFormats) {
    const auto matrix = host_matrix(store, block.id, {.first = 1034, .rows = 4, .cols = 256});
    EXPECT_EQ(matrix->kernel().format, Format(block.id));
    std::vector<float> y(4);
    matrix->multiply(x, 1, y);
    const std::vector<float> weights = unpack_parts(block.id, store.master());
    for (std::size_t row = 0; row < 4; ++row) {
      double sum = 0, magnitude = 0;
      for (std::size_t i = 0; i < 256; ++i) {
        sum += 0.5 * static_cast<double>(weights[1034 + 256 * row + i]);
        magnitude += std::fabs(0.5 * static_cast<double>(weights[1034 + 256 * row + i]));
      }
      EXPECT_NEAR(y[row], sum, 1e-5 * magnitude) << block.name;
    }
    const auto over_the_seam = host_matrix(store, block.id, {.first = 768, .rows = 2, .cols = 256});
    EXPECT_EQ(over_the_seam->kernel().format, Format(DType::float32)) << "no kernel reads such codes";
  }
}

TEST(BlockArrays, LoadedOnesAreKeptVerbatim) {
  WeightStore original(kParts);
  original.he_randomize(5, 256);
  const std::vector<std::byte> packed = copy(original.morph(BlockFormat::q4_k)->codes());
  WeightStore store(kParts);
  store.set_loaded(BlockFormat::q4_k, packed, std::span<const float>());
  EXPECT_EQ(copy(store.morph(BlockFormat::q4_k)->codes()), packed);
  EXPECT_EQ(copy(store.copy().morph(BlockFormat::q4_k)->codes()), packed);
  EXPECT_EQ(copy(store.master()), original.active(BlockFormat::q4_k));
  EXPECT_THROW(
      store.set_loaded(BlockFormat::q4_k, std::span(packed).first(packed.size() - 4), std::span<const float>()),
      ShapeError);
}

TEST(BlockArrays, RowsMustBeWholeBlocksAndVectorsHaveNone) {
  const WeightStore store({.rows = 1, .cols = 96 * 4 + 4, .matrices = {{{4, 96}}}, .vectors = 4});
  EXPECT_THROW(store.morph(BlockFormat::q4_k), ShapeError);
  EXPECT_NO_THROW(store.morph(BlockFormat::q4_0));
  const WeightStore norm({.rows = 1, .cols = 256, .vectors = 256});
  EXPECT_THROW(norm.morph(BlockFormat::q4_0), ShapeError);
  EXPECT_EQ(norm.morph(DType::int8)->codes().size(), 256u);
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
