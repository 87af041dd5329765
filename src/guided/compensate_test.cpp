// Error-compensating rounding and what it is made of.

#include "guided/compensate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/parallel.h"
#include "guided/block_bits.h"
#include "guided/encode_matrix.h"
#include "guided/levels.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "quant/rows.h"
#include "testing/random_values.h"

namespace imago::guided {
namespace {

constexpr BlockFormat kBlockFormatsWithCodes[] = {
    BlockFormat::q4_0,   BlockFormat::q4_1,   BlockFormat::q5_0,  BlockFormat::q5_1,  BlockFormat::q8_0,
    BlockFormat::q2_k,   BlockFormat::q3_k,   BlockFormat::q4_k,  BlockFormat::q5_k,  BlockFormat::q6_k,
    BlockFormat::iq4_nl, BlockFormat::iq4_xs, BlockFormat::tq2_0, BlockFormat::mxfp4, BlockFormat::nvfp4};

TEST(CodeBits, EachCodeIsReplacedAlone) {
  std::mt19937 random(3);
  for (const BlockFormat format : kBlockFormatsWithCodes) {
    const auto bits = CodeBits::of(format);
    ASSERT_TRUE(bits) << name(format);
    const auto values = static_cast<std::size_t>(info(format).values);
    const std::vector<float> weights = testing::random_values(values, 5);
    std::vector<std::byte> block(static_cast<std::size_t>(info(format).bytes));
    encode(format, weights, block);
    const quant::BlockParts parts = quant::block_parts(format);
    quant::Expanded before, after;
    parts.expand(block.data(), before);
    std::vector<std::size_t> codes(values);
    for (std::size_t i = 0; i < values; ++i) {
      codes[i] = random() % bits->levels().size();
      bits->set(block.data(), i, codes[i]);
    }
    parts.expand(block.data(), after);
    for (std::size_t i = 0; i < values; ++i) {
      ASSERT_EQ(static_cast<float>(after.codes[i]), bits->levels()[codes[i]]) << name(format) << " weight " << i;
    }
    for (std::size_t g = 0; g < values / static_cast<std::size_t>(parts.group); ++g) {
      EXPECT_EQ(after.scales[g], before.scales[g]) << name(format);
    }
  }
  using enum BlockFormat;
  // Five weights share a byte, or several an entry of a codebook.
  for (const BlockFormat format : {tq1_0, iq1_s, iq1_m, iq2_xxs, iq2_xs, iq2_s, iq3_xxs, iq3_s}) {
    EXPECT_FALSE(CodeBits::of(format)) << name(format);
  }
}

TEST(Levels, NearestIsNearest) {
  for (const DType dtype : {DType::int4, DType::uint4, DType::int2, DType::int8, DType::ternary, DType::binary,
                            DType::fp4, DType::fp8e4m3}) {
    const Levels levels = Levels::of(dtype);
    for (float t = -9; t < 9; t += 0.37f) {
      const float found = levels.value(levels.nearest(t));
      const float one = 1;
      std::vector<std::byte> packed(packed_bytes(dtype, 1));
      std::vector<float> back(1);
      encode(dtype, std::span(&t, 1), {{&one, 1}, 1}, packed);
      decode(dtype, packed, {{&one, 1}, 1}, back);
      EXPECT_EQ(found, back[0]) << name(dtype) << " " << t;
    }
  }
}

/// Inputs that go together: sums of a few common causes, of uneven size.
InputStatistics correlated(std::size_t columns) {
  constexpr std::size_t kRows = 150, kCauses = 12;
  const std::vector<float> causes = testing::random_values(kRows * kCauses, 1);
  const std::vector<float> mix = testing::random_values(kCauses * columns, 2);
  const std::vector<float> own = testing::random_values(kRows * columns, 3);
  InputStatistics statistics;
  statistics.rows = kRows;
  std::vector<double> products(columns * columns);
  std::vector<double> x(columns);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < columns; ++i) {
      x[i] = 0.3 * static_cast<double>(own[row * columns + i]);
      for (std::size_t c = 0; c < kCauses; ++c) {
        x[i] += static_cast<double>(causes[row * kCauses + c]) * static_cast<double>(mix[c * columns + i]);
      }
      if (i % 9 == 2) x[i] *= 4;
    }
    for (std::size_t i = 0; i < columns; ++i) {
      for (std::size_t j = 0; j < columns; ++j) products[i * columns + j] += x[i] * x[j] / kRows;
    }
  }
  for (std::size_t i = 0; i < columns; ++i) {
    statistics.second_moments.push_back(static_cast<float>(products[i * columns + i]));
  }
  statistics.products.assign(products.begin(), products.end());
  return statistics;
}

TEST(Feedback, FactorsTheDampedProducts) {
  const std::size_t n = 300;  // more than a panel, and no whole number of tiles
  const InputStatistics statistics = correlated(n);
  const Feedback feedback(statistics);
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i)
    mean += static_cast<double>(statistics.products[i * n + i]) / static_cast<double>(n);
  const auto u = [&](std::size_t i, std::size_t k) {
    if (i == k) return 1.0;
    if (i > k) return 0.0;
    const std::size_t p = k / Feedback::kPanel;
    return static_cast<double>(feedback.panel(p)[i * feedback.panel_width(p) + k % Feedback::kPanel]);
  };
  for (std::size_t i = 0; i < n; i += 7) {
    for (std::size_t j = 0; j < n; j += 5) {
      double sum = 0;
      for (std::size_t k = std::max(i, j); k < n; ++k)
        sum += u(i, k) * static_cast<double>(feedback.pivots()[k]) * u(j, k);
      const double wanted = static_cast<double>(statistics.products[i * n + j]) + (i == j ? 0.2 * mean : 0);
      ASSERT_NEAR(sum, wanted, 1e-4 * mean) << i << " " << j;
    }
  }
}

/// Mean squared error of the outputs, from its definition.
double output_error(std::span<const float> weights, std::span<const float> got, const InputStatistics& statistics) {
  const std::size_t n = statistics.second_moments.size();
  double sum = 0;
  for (std::size_t row = 0; row < weights.size() / n; ++row) {
    std::vector<double> error(n);
    for (std::size_t i = 0; i < n; ++i) {
      error[i] = static_cast<double>(weights[row * n + i]) - static_cast<double>(got[row * n + i]);
    }
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        sum += error[i] * error[j] * static_cast<double>(statistics.products[i * n + j]);
      }
    }
  }
  return sum;
}

TEST(EncodeCompensated, OutputsAreNearerThanByRoundingEachWeight) {
  constexpr std::size_t kRows = 5, kCols = 512;
  const std::vector<float> weights = testing::random_values(kRows * kCols, 4);
  const InputStatistics statistics = correlated(kCols);
  std::vector<Scheme> schemes;
  for (const BlockFormat format : kBlockFormatsWithCodes) schemes.emplace_back(format);
  for (const DType dtype : {DType::int4, DType::int2, DType::ternary, DType::fp4, DType::int8}) {
    Scheme scheme(dtype);
    schemes.push_back(scheme);
    scheme.granularity = Granularity::row;
    schemes.push_back(scheme);
    scheme.granularity = Granularity::group;
    for (const int group : {32, 128}) {
      scheme.group = group;
      schemes.push_back(scheme);
    }
  }
  for (const Scheme& scheme : schemes) {
    const auto error = [&](Rounding rounding, const InputStatistics* known) {
      const EncodedMatrix matrix = encode_matrix(weights, kRows, kCols, scheme, rounding, known);
      return output_error(weights, decode_matrix(matrix, scheme, kRows, kCols), statistics);
    };
    EXPECT_LT(error(Rounding::compensated, &statistics), 0.7 * error(Rounding::nearest, nullptr))
        << scheme.format.name() << " group " << scheme.group;
  }
}

TEST(EncodeCompensated, DoesNotDependOnThreads) {
  constexpr std::size_t kRows = 70, kCols = 320;
  const std::vector<float> weights = testing::random_values(kRows * kCols, 4);
  const int threads = pool_threads();
  std::vector<std::byte> first;
  for (const int count : {1, 3}) {
    set_pool_threads(count);
    const InputStatistics statistics = correlated(kCols);
    const EncodedMatrix got =
        encode_matrix(weights, kRows, kCols, BlockFormat::q4_0, Rounding::compensated, &statistics);
    if (first.empty()) first = got.codes;
    EXPECT_EQ(got.codes, first);
  }
  set_pool_threads(threads);
}

TEST(EncodeCompensated, SaysWhatItNeeds) {
  const std::vector<float> weights = testing::random_values(2 * 256, 4);
  InputStatistics statistics = correlated(256);
  EXPECT_THROW(encode_matrix(weights, 2, 256, BlockFormat::tq1_0, Rounding::compensated, &statistics),
               UnsupportedError);
  EXPECT_THROW(encode_matrix(weights, 2, 256, BlockFormat::q4_0, Rounding::compensated, nullptr), UsageError);
  statistics.products.clear();
  EXPECT_THROW(encode_matrix(weights, 2, 256, BlockFormat::q4_0, Rounding::compensated, &statistics), UsageError);
}

// A text that never used a column, and one whose columns are copies of each other.
TEST(EncodeCompensated, LivesWithProductsOfLowRank) {
  constexpr std::size_t kCols = 256;
  InputStatistics statistics;
  statistics.rows = 10;
  statistics.second_moments.assign(kCols, 1);
  statistics.products.assign(kCols * kCols, 1);
  for (std::size_t i = 0; i < kCols; ++i) statistics.products[i * kCols + 3] = statistics.products[3 * kCols + i] = 0;
  const std::vector<float> weights = testing::random_values(kCols, 4);
  const Scheme scheme(BlockFormat::q4_k);
  const EncodedMatrix got = encode_matrix(weights, 1, kCols, scheme, Rounding::compensated, &statistics);
  for (const float value : decode_matrix(got, scheme, 1, kCols)) EXPECT_TRUE(std::isfinite(value));
}

}  // namespace
}  // namespace imago::guided
