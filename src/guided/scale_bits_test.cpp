// Scales and offsets of groups, replaced one by one.

#include "guided/block_bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "guided/compensate.h"
#include "guided/encode_matrix.h"
#include "imago/codec.h"
#include "testing/random_values.h"

namespace imago::guided {
namespace {

std::vector<std::byte> random_block(BlockFormat format) {
  const std::vector<float> weights = testing::random_values(static_cast<std::size_t>(info(format).values), 5);
  std::vector<std::byte> block(static_cast<std::size_t>(info(format).bytes));
  encode(format, weights, block);
  return block;
}

void expect_each_alone(BlockFormat format, ScaleBits::Part part) {
  SCOPED_TRACE(name(format));
  const quant::BlockParts parts = quant::block_parts(format);
  const ScaleBits bits(format, part);
  ASSERT_EQ(bits.exist(), part == ScaleBits::Part::scale || parts.has_offset);
  if (!bits.exist()) return;
  std::vector<std::byte> block = random_block(format);
  const float unit = bits.unit(block.data());
  const auto values = [&](const quant::Expanded& one) {
    return part == ScaleBits::Part::scale ? one.scales : one.offsets;
  };
  std::mt19937 random(7);
  quant::Expanded before{}, after{};
  const auto groups = static_cast<std::size_t>(info(format).values / parts.group);
  for (std::size_t group = 0; group < groups; ++group) {
    for (int trial = 0; trial < 8; ++trial) {
      parts.expand(block.data(), before);
      const std::size_t place = bits.nearest(static_cast<float>(random() % 70));
      bits.set(block.data(), group, place);
      parts.expand(block.data(), after);
      for (std::size_t other = 0; other < groups; ++other) {
        const float expected = other == group ? unit * bits.factor(place) : values(before)[other];
        ASSERT_FLOAT_EQ(values(after)[other], expected) << "group " << other << " after " << group;
      }
      ASSERT_TRUE(std::ranges::equal(before.codes, after.codes));
    }
  }
}

TEST(ScaleBits, EachScaleIsReplacedAlone) {
  for (const BlockFormatInfo& info : kBlockFormats) {
    if (!info.in_gguf()) continue;
    expect_each_alone(info.id, ScaleBits::Part::scale);
    expect_each_alone(info.id, ScaleBits::Part::offset);
  }
}

TEST(ScaleBits, NearestIsNearest) {
  const ScaleBits bits(BlockFormat::q3_k, ScaleBits::Part::scale);  // -32 … 31
  for (const auto& [wanted, found] :
       {std::pair{-99.0f, -32.0f}, {-1.4f, -1.0f}, {0.2f, 0.0f}, {7.6f, 8.0f}, {99.0f, 31.0f}}) {
    EXPECT_EQ(bits.factor(bits.nearest(wanted)), found) << wanted;
  }
}

/// One block a row, so that its scale is the last thing that moves: least squares for its codes say what it must be.
TEST(EncodeCompensated, ScalesAreBestForTheirCodes) {
  constexpr std::size_t rows = 40, cols = 32;
  const std::vector<float> weights = testing::random_values(rows * cols, 11);
  InputStatistics inputs;
  inputs.rows = 100;
  inputs.products.resize(cols * cols);
  const std::vector<float> x = testing::random_values(inputs.rows * cols, 12);
  for (std::size_t i = 0; i < cols; ++i) {
    for (std::size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (std::size_t t = 0; t < inputs.rows; ++t) {
        sum += static_cast<double>(x[t * cols + i]) * static_cast<double>(x[t * cols + j]);
      }
      inputs.products[i * cols + j] = static_cast<float>(sum / static_cast<double>(inputs.rows));
    }
    inputs.second_moments.push_back(inputs.products[i * cols + i]);
  }
  const EncodedMatrix encoded = encode_matrix(weights, rows, cols, BlockFormat::q4_0, Rounding::compensated, &inputs);
  const quant::BlockParts parts = quant::block_parts(BlockFormat::q4_0);
  quant::Expanded block;
  const double damping = static_cast<double>(Feedback(inputs).damping());
  for (std::size_t row = 0; row < rows; ++row) {
    parts.expand(encoded.codes.data() + row * 18, block);
    double with_weights = 0, with_itself = 0;
    for (std::size_t i = 0; i < cols; ++i) {
      for (std::size_t j = 0; j < cols; ++j) {
        const double h = static_cast<double>(inputs.products[i * cols + j]) + (i == j ? damping : 0);
        with_weights += h * block.codes[i] * static_cast<double>(weights[row * cols + j]);
        with_itself += h * block.codes[i] * block.codes[j];
      }
    }
    const double best = with_weights / with_itself;
    EXPECT_NEAR(static_cast<double>(block.scales[0]), best, std::abs(best) / 1024) << "a half has 11 bits; row " << row;
  }
}

}  // namespace
}  // namespace imago::guided
