// Matrices packed with and without statistics of their inputs.

#include "guided/encode_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "quant/scheme.h"
#include "testing/random_values.h"

namespace imago::guided {
namespace {

constexpr std::size_t kRows = 24, kCols = 256;

std::vector<float> some_weights() { return testing::random_values(kRows * kCols, 11); }

/// A few columns matter much, most little.
InputStatistics uneven_statistics() {
  InputStatistics statistics;
  statistics.rows = 1000;
  for (std::size_t i = 0; i < kCols; ++i) statistics.second_moments.push_back(i % 7 == 3 ? 40.0f : 0.25f);
  return statistics;
}

/// The error of the outputs, were columns independent: written out, in double.
double weighted_error(std::span<const float> weights, std::span<const float> got, const InputStatistics& statistics) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double error = static_cast<double>(weights[i]) - static_cast<double>(got[i]);
    sum += error * error * static_cast<double>(statistics.second_moments[i % kCols]);
  }
  return sum;
}

std::vector<Scheme> schemes() {
  std::vector<Scheme> all;
  for (const BlockFormat format : {BlockFormat::q4_0, BlockFormat::q8_0, BlockFormat::q2_k, BlockFormat::q3_k,
                                   BlockFormat::q4_k, BlockFormat::q6_k, BlockFormat::iq4_nl}) {
    all.emplace_back(format);
  }
  for (const DType dtype :
       {DType::int4, DType::int2, DType::fp4, DType::ternary, DType::int8, DType::uint4, DType::uint2}) {
    Scheme scheme(dtype);
    all.push_back(scheme);
    scheme.granularity = Granularity::row;
    all.push_back(scheme);
    scheme.granularity = Granularity::group;
    scheme.group = 32;
    all.push_back(scheme);
  }
  return all;
}

TEST(EncodeMatrix, WithoutStatisticsItIsPlainMorphing) {
  const std::vector<float> weights = some_weights();
  for (const Scheme& scheme : schemes()) {
    const EncodedMatrix got = encode_matrix(weights, kRows, kCols, scheme, Rounding::nearest, nullptr);
    std::vector<std::byte> wanted(packed_bytes(scheme.format, weights.size()));
    if (scheme.format.is_block()) {
      encode(scheme.format.block(), weights, wanted);
    } else {
      const ScaleLayout layout = scale_layout(scheme, kRows, kCols);
      const ScaleValues scales = derive_scales(scheme, layout, weights);
      EXPECT_EQ(got.scales, scales.scales);
      EXPECT_EQ(got.zero_points, scales.zero_points);
      EXPECT_EQ(got.scale_group, layout.group);
      encode(scheme.format.dtype(), weights, scales.over(layout.group), wanted);
    }
    EXPECT_EQ(got.codes, wanted) << scheme.format.name();
  }
}

TEST(EncodeMatrix, ColumnsThatMatterLoseLess) {
  const std::vector<float> weights = some_weights();
  const InputStatistics statistics = uneven_statistics();
  for (const Scheme& scheme : schemes()) {
    const auto error = [&](const InputStatistics* known) {
      const EncodedMatrix matrix = encode_matrix(weights, kRows, kCols, scheme, Rounding::nearest, known);
      return weighted_error(weights, decode_matrix(matrix, scheme, kRows, kCols), statistics);
    };
    EXPECT_LE(error(&statistics), error(nullptr)) << scheme.format.name() << " group " << scheme.group;
  }
}

TEST(EncodeMatrix, AColumnThatIsNeverUsedIsNotForgotten) {
  const std::vector<float> weights = some_weights();
  InputStatistics statistics = uneven_statistics();
  for (std::size_t i = 0; i < 32; ++i) statistics.second_moments[i] = 0;
  const Scheme scheme(BlockFormat::q4_0);
  const std::vector<float> got =
      decode_matrix(encode_matrix(weights, kRows, kCols, scheme, Rounding::nearest, &statistics), scheme, kRows, kCols);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_NEAR(got[i], weights[i], 0.5f);
}

TEST(EncodeMatrix, StatisticsMustFit) {
  const std::vector<float> weights = some_weights();
  InputStatistics statistics = uneven_statistics();
  statistics.second_moments.pop_back();
  EXPECT_THROW(encode_matrix(weights, kRows, kCols, BlockFormat::q4_0, Rounding::nearest, &statistics), UsageError);
  statistics.second_moments.push_back(std::nanf(""));
  EXPECT_THROW(encode_matrix(weights, kRows, kCols, BlockFormat::q4_0, Rounding::nearest, &statistics), UsageError);
  EXPECT_THROW(encode_matrix(weights, kRows, kCols - 1, BlockFormat::q4_0, Rounding::nearest, nullptr), ShapeError);
}

}  // namespace
}  // namespace imago::guided
