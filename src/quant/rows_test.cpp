// The block formats against bytes, values and dot products made by ggml.

#include "imago/codec.h"

#include <gtest/gtest.h>

#include <cstring>

#include "imago/error.h"
#include "testing/blocks.h"
#include "testing/safetensors.h"

namespace imago {
namespace {

constexpr std::size_t kRows = 12;
constexpr std::size_t kColumns = 1024;

/// "q4_k" is "q4_K" in the file.
std::string reference_name(BlockFormat format) {
  std::string text(name(format));
  if (text.ends_with("_k")) text.back() = 'K';
  return text;
}

/// Formats whose plain encoding is fixed to the byte.
bool is_exact(BlockFormat format) {
  return format == BlockFormat::q4_0 || format == BlockFormat::q4_1 || format == BlockFormat::q5_0 ||
         format == BlockFormat::q5_1 || format == BlockFormat::q8_0;
}

class GgmlReference : public ::testing::TestWithParam<BlockFormat> {
 protected:
  static const testing::SafetensorsFile& file() {
    static const testing::SafetensorsFile reference("ggml/blocks.safetensors");
    return reference;
  }
  std::vector<float> input = file().values<float>("input");
  std::vector<std::byte> bytes = file().values<std::byte>(reference_name(GetParam()) + ".bytes");
  std::vector<float> decoded = file().values<float>(reference_name(GetParam()) + ".dequantized");
};

TEST_P(GgmlReference, DecodesBitForBit) {
  std::vector<float> got(input.size());
  dequantize_row(GetParam(), bytes, got);
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(std::memcmp(&got[i], &decoded[i], sizeof(float)), 0) << "weight " << i << ": " << got[i];
  }
}

TEST_P(GgmlReference, EncodesTheSameBytesOrBetterOnes) {
  std::vector<std::byte> got(bytes.size());
  quantize_row(GetParam(), input, got);
  if (is_exact(GetParam())) {
    EXPECT_EQ(got, bytes);
    return;
  }
  std::vector<float> values(input.size());
  dequantize_row(GetParam(), got, values);
  double mean_ratio = 0;
  int rows_with_error = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const std::span<const float> x = std::span(input).subspan(row * kColumns, kColumns);
    const double ours = testing::weighted_rmse(x, std::span(values).subspan(row * kColumns, kColumns));
    const double theirs = testing::weighted_rmse(x, std::span(decoded).subspan(row * kColumns, kColumns));
    EXPECT_LE(ours, 1.02 * theirs) << "row " << row;
    if (theirs > 0) {
      mean_ratio += ours / theirs;
      ++rows_with_error;
    }
  }
  EXPECT_LT(mean_ratio / rows_with_error, 1.0);
}

TEST_P(GgmlReference, DotProducts) {
  const std::vector<float> activation = file().values<float>("activation");
  const std::vector<float> exact = file().values<float>(reference_name(GetParam()) + ".dot_f64");
  const std::vector<Int8Block> quantized = quantize_activations(activation);
  const std::size_t row_bytes = bytes.size() / kRows;
  for (std::size_t row = 0; row < kRows; ++row) {
    const auto blocks = std::span(bytes).subspan(row * row_bytes, row_bytes);
    double scale = 0;  // Σ|w·x|: what the products add up to before they cancel
    double dequantized_dot = 0;
    for (std::size_t i = 0; i < kColumns; ++i) {
      const double w = decoded[row * kColumns + i];
      const Int8Block& block = quantized[i / 32];
      scale += std::fabs(w * static_cast<double>(activation[i]));
      dequantized_dot += w * static_cast<double>(block.scale) * block.q[i % 32];
    }
    EXPECT_NEAR(dot_row(GetParam(), blocks, activation), exact[row], 1e-6 * scale + 1e-12) << "row " << row;
    // The integer form is exact up to its last rounding: compare with the int8 activations in double …
    EXPECT_NEAR(dot_row(GetParam(), blocks, quantized), dequantized_dot, 1e-6 * scale + 1e-12) << "row " << row;
    // … and it stays close to the float32 result.
    EXPECT_NEAR(dot_row(GetParam(), blocks, quantized), exact[row], 5e-3 * scale + 1e-12) << "row " << row;
  }
}

std::vector<BlockFormat> formats_in_reference() {
  const testing::SafetensorsFile reference("ggml/blocks.safetensors");  // codebook_test.cpp has the others
  std::vector<BlockFormat> formats;
  for (const BlockFormatInfo& row : kBlockFormats) {
    if (reference.has(reference_name(row.id) + ".bytes")) formats.push_back(row.id);
  }
  return formats;
}

INSTANTIATE_TEST_SUITE_P(AllFormats, GgmlReference, ::testing::ValuesIn(formats_in_reference()),
                         testing::block_format_name);

TEST(EntityQ4, FollowsTheOriginal) {
  // d = 7 / 7 = 1; halves away from zero; neighbours share a byte, the first in the low half.
  std::vector<float> row(32, 0.0f);
  row[0] = 7;
  row[1] = -0.5f;
  row[2] = 2.5f;
  row[3] = -7;
  std::vector<std::byte> block(20);
  quantize_row(BlockFormat::entity_q4_0, row, block);
  float scale = 0;
  std::memcpy(&scale, block.data(), sizeof scale);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(block[4], std::byte{0xF7});  // 7, -1
  EXPECT_EQ(block[5], std::byte{0x93});  // 3, -7
  std::vector<float> back(32);
  dequantize_row(BlockFormat::entity_q4_0, block, back);
  EXPECT_EQ(back[1], -1.0f);
  EXPECT_EQ(back[2], 3.0f);
  quantize_row(BlockFormat::entity_q4_0, std::vector<float>(32, 0.0f), block);
  EXPECT_EQ(block, std::vector<std::byte>(20)) << "all zeros: scale 0 and codes 0, no division by it";
}

TEST(Activations, QuantizeToInt8) {
  std::vector<float> x = testing::gaussian(70, 3);
  const std::vector<Int8Block> blocks = quantize_activations(x);
  ASSERT_EQ(blocks.size(), 3u);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const Int8Block& block = blocks[i / 32];
    // Half a step, and what the fit of the scale moves 127 of them.
    EXPECT_NEAR(block.scale * static_cast<float>(block.q[i % 32]), x[i], 0.7f * block.scale);
  }
  for (const Int8Block& block : blocks) {
    int sum = 0;
    for (const std::int8_t q : block.q) sum += q;
    EXPECT_EQ(sum, block.sum);
  }
  EXPECT_EQ(blocks[2].q[6], 0) << "padding";
  x[5] = INFINITY;
  x[40] = NAN;
  const std::vector<Int8Block> hostile = quantize_activations(x);
  EXPECT_EQ(hostile[0].scale, 0.0f);
  EXPECT_EQ(hostile[1].sum, 0);
  EXPECT_EQ(hostile[2].scale, blocks[2].scale);
  EXPECT_TRUE(quantize_activations({}).empty());
  EXPECT_EQ(quantize_activations(std::vector<float>(32, 0.0f))[0].scale, 0.0f);
}

TEST(Activations, LoseLessThanUnderTheObviousScale) {
  const std::vector<float> x = testing::gaussian(32 * 1000, 4);
  const std::vector<Int8Block> blocks = quantize_activations(x);
  double all = 0, obvious = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    double largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(double{x[b * 32 + i]}));
    for (std::size_t i = 0; i < 32; ++i) {
      const double value = x[b * 32 + i], step = largest / 127;
      all += std::pow(value - double{blocks[b].scale} * blocks[b].q[i], 2);
      obvious += std::pow(value - step * std::round(value / step), 2);
    }
  }
  EXPECT_LT(all, 0.87 * obvious);
  EXPECT_GT(all, 0.7 * obvious);  // or the comparison is wrong
}

TEST(Rows, SizesMustFit) {
  std::vector<float> row(64);
  std::vector<std::byte> blocks(36);
  EXPECT_NO_THROW(quantize_row(BlockFormat::q4_0, row, blocks));
  EXPECT_THROW(quantize_row(BlockFormat::q4_0, std::span(row).first(33), blocks), ShapeError);
  EXPECT_THROW(quantize_row(BlockFormat::q4_0, row, std::span(blocks).first(18)), ShapeError);
  EXPECT_THROW(quantize_row(BlockFormat::q4_k, row, blocks), ShapeError);
  EXPECT_THROW(dequantize_row(BlockFormat::q4_0, blocks, std::span(row).first(32)), ShapeError);
  EXPECT_THROW(dot_row(BlockFormat::q4_0, blocks, std::span<const float>(row).first(32)), ShapeError);
  EXPECT_THROW(dot_row(BlockFormat::q4_0, blocks, quantize_activations(std::vector<float>(32))), ShapeError);
  EXPECT_NO_THROW(quantize_row(BlockFormat::q4_0, {}, {}));
  try {
    quantize_row(BlockFormat::q4_k, std::vector<float>(300), blocks);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "300 weights are not a multiple of the 256 that a block of q4_k holds");
  }
}

}  // namespace
}  // namespace imago
