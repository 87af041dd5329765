// What every encoder owes its caller, whatever the weights are.

#include <gtest/gtest.h>

#include <limits>

#include "imago/codec.h"
#include "imago/error.h"
#include "testing/blocks.h"

namespace imago {
namespace {

class Encoding : public ::testing::TestWithParam<BlockFormat> {
 protected:
  BlockFormat format = GetParam();

  std::vector<float> round_trip(std::span<const float> weights, std::span<const float> importance = {}) const {
    std::vector<std::byte> blocks(packed_bytes(format, weights.size()));
    quantize_row(format, weights, blocks, importance);
    std::vector<float> back(weights.size());
    dequantize_row(format, blocks, back);
    return back;
  }
};

TEST_P(Encoding, ImportanceLowersTheWeightedError) {
  // A few columns matter a hundred times more, as they do in language models.
  const std::vector<float> weights = testing::gaussian(64 * 512, 11, 0.05f);
  std::vector<float> importance(512, 0.01f);
  for (std::size_t i = 0; i < importance.size(); i += 13) importance[i] = 1.0f;
  const double plain = testing::weighted_rmse(weights, round_trip(weights), importance);
  const double weighted = testing::weighted_rmse(weights, round_trip(weights, importance), importance);
  EXPECT_LT(weighted, plain);
}

TEST_P(Encoding, ImportanceNeverHurtsARow) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    const std::vector<float> weights = testing::gaussian(512, 100 + seed);
    std::vector<float> importance = testing::gaussian(512, 200 + seed);
    for (float& f : importance) f = f * f;
    const double plain = testing::weighted_rmse(weights, round_trip(weights), importance);
    const double weighted = testing::weighted_rmse(weights, round_trip(weights, importance), importance);
    EXPECT_LE(weighted, 1.001 * plain) << "seed " << seed;
  }
}

TEST_P(Encoding, UniformImportanceIsNoWorseThanNone) {
  const std::vector<float> weights = testing::gaussian(4096, 5);
  const std::vector<float> ones(4096, 1.0f);
  EXPECT_LE(testing::weighted_rmse(weights, round_trip(weights, ones)),
            1.0001 * testing::weighted_rmse(weights, round_trip(weights)));
}

TEST_P(Encoding, ZerosStayZeros) {
  for (const float w : round_trip(std::vector<float>(512, 0.0f))) EXPECT_EQ(w, 0.0f);
  const std::vector<float> none(512, 0.0f);
  for (const float w : round_trip(testing::gaussian(512, 1), none)) EXPECT_TRUE(std::isfinite(w));
}

TEST_P(Encoding, HostileWeightsGiveFiniteBlocks) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  const float hostile[] = {NAN, kInf, -kInf, kMax, -kMax, 1e38f, 1e-38f, 1e-45f, -1e-45f, 65504.0f, 1e30f, -1e-30f};
  for (const float bad : hostile) {
    for (int pattern = 0; pattern < 4; ++pattern) {
      std::vector<float> weights = testing::gaussian(512, 7);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        if (pattern == 0 && i % 64 == 3) weights[i] = bad;                        // a single outlier per block
        if (pattern == 1) weights[i] = bad;                                       // constant
        if (pattern == 2) weights[i] = i % 2 == 0 ? bad : -bad;                   // alternating
        if (pattern == 3) weights[i] = weights[i] * 1e-42f + (i == 9 ? bad : 0);  // denormals beside it
      }
      std::vector<float> ones(512, 1.0f);
      for (const auto& importance : {std::span<const float>(), std::span<const float>(ones)}) {
        for (const float w : round_trip(weights, importance)) {
          ASSERT_TRUE(std::isfinite(w)) << bad << " pattern " << pattern;
        }
      }
    }
  }
}

TEST_P(Encoding, NanCountsAsZeroAndLeavesTheOthersAlone) {
  std::vector<float> with_zero = testing::gaussian(512, 21);
  for (std::size_t i = 0; i < with_zero.size(); i += 37) with_zero[i] = 0.0f;
  std::vector<float> with_nan = with_zero;
  for (std::size_t i = 0; i < with_nan.size(); i += 37) with_nan[i] = NAN;
  EXPECT_EQ(round_trip(with_nan), round_trip(with_zero));
}

TEST_P(Encoding, IsIdempotentUpToTheFormat) {
  // Encoding what was decoded may search anew, but must not lose more than the first time.
  const std::vector<float> weights = testing::gaussian(2048, 31);
  const std::vector<float> once = round_trip(weights);
  const std::vector<float> twice = round_trip(once);
  EXPECT_LE(testing::weighted_rmse(once, twice), 0.35 * testing::weighted_rmse(weights, once) + 1e-7);
}

TEST_P(Encoding, ScalesWithTheWeights) {
  // Multiplying by a power of two changes exponents only. nvfp4's scales have a narrow range, so stay near 1.
  const std::vector<float> weights = testing::gaussian(512, 41);
  std::vector<float> doubled = weights;
  for (float& w : doubled) w *= 2;
  std::vector<float> expected = round_trip(weights);
  for (float& w : expected) w *= 2;
  EXPECT_EQ(round_trip(doubled), expected);
}

TEST_P(Encoding, BadImportanceIsRefused) {
  const std::vector<float> weights(512);
  std::vector<std::byte> blocks(packed_bytes(format, 512));
  const std::vector<float> short_one(300, 1.0f);
  EXPECT_THROW(quantize_row(format, weights, blocks, short_one), ShapeError);
  for (const float bad : {-1.0f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> importance(512, 1.0f);
    importance[17] = bad;
    try {
      quantize_row(format, weights, blocks, importance);
      FAIL() << bad;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("column 17"), std::string::npos) << error.what();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllFormats, Encoding, ::testing::ValuesIn(testing::all_block_formats()),
                         testing::block_format_name);

}  // namespace
}  // namespace imago
