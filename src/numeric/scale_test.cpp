// Derivation of scales, docs/numeric.md, and what the types make of ordinary weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "imago/error.h"
#include "imago/numeric.h"

namespace imago {
namespace {

using Weights = std::vector<float>;

template <class Distribution>
Weights draw(std::size_t count, Distribution distribution, unsigned seed) {
  std::mt19937 random(seed);
  Weights weights(count);
  for (float& w : weights) w = distribution(random);
  return weights;
}

Weights gaussian(std::size_t count, unsigned seed = 1) { return draw(count, std::normal_distribution<float>(), seed); }
Weights uniform(std::size_t count, unsigned seed = 1) {
  return draw(count, std::uniform_real_distribution<float>(-1, 1), seed);
}

TEST(DeriveScale, IsTheLargestMagnitudeOverQ) {
  const Weights weights = {0.5f, -3, 2};
  for (const DTypeInfo& type : kDTypes) {
    float wanted = 3 / type.scale_divisor;
    if (type.kind == NumberKind::wide_float) wanted = 1;
    if (type.kind == NumberKind::unsigned_integer) wanted = 2 / type.scale_divisor;
    if (type.kind == NumberKind::binary) wanted = 5.5f / 3;
    EXPECT_EQ(derive_scale(type.id, weights), wanted) << type.name;
  }
}

TEST(DeriveScale, IsOneWhereNothingElseWorks) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const DTypeInfo& type : kDTypes) {
    for (const Weights& weights : {Weights{}, Weights{0}, Weights{0, -0.0f, 0}, Weights{NAN}, Weights{NAN, NAN},
                                   Weights{INFINITY}, Weights{1, INFINITY}}) {
      EXPECT_EQ(derive_scale(type.id, weights), 1) << type.name << ", " << weights.size() << " weights";
    }
  }
  EXPECT_EQ(derive_scale(DType::int8, Weights{tiny}), 1) << "a quotient that underflows";
  EXPECT_EQ(derive_scale(DType::uint8, Weights{-1, -2}), 1) << "nothing on the positive side";
}

TEST(DeriveScale, PassesOverNaN) {
  EXPECT_EQ(derive_scale(DType::int8, Weights{NAN, 127, NAN, -1}), 1);
  EXPECT_EQ(derive_scale(DType::int8, Weights{254, NAN}), 2);
  EXPECT_EQ(derive_scale(DType::binary, Weights{4, NAN}), 2);
}

TEST(DeriveScale, OneWeightSurvives) {
  for (const DTypeInfo& type : kDTypes) {
    for (const float w : {1e-20f, 0.7f, 3.0f, 1e20f}) {
      if (type.id == DType::float16 && (w < 1e-4f || w > 60000)) continue;
      const float scale = derive_scale(type.id, Weights{w});
      EXPECT_NEAR(simulate_precision(w, type.id, scale) / w, 1, 0.005) << type.name << " of " << w;
    }
  }
}

TEST(DeriveAbsmeanScale, IsTheMeanMagnitude) {
  EXPECT_EQ(derive_absmean_scale(Weights{1, -2, 3, 0}), 1.5f);
  EXPECT_EQ(derive_absmean_scale({}), 1);
  EXPECT_EQ(derive_absmean_scale(Weights{0, 0}), 1);
  EXPECT_EQ(derive_absmean_scale(Weights{INFINITY, 1}), 1);
  // Summed in float, the ones would vanish beside 2^24.
  Weights weights(1 << 20, 1.0f);
  weights[0] = 0x1p24f;
  EXPECT_EQ(derive_absmean_scale(weights), static_cast<float>(0x1p24 + (1 << 20) - 1) / 0x1p20f);
}

TEST(DerivePercentileScale, CountsFromTheSmallest) {
  const Weights weights = {-10, 1, 2, -3, 4, 5, 6, -7, 8, 9};
  EXPECT_EQ(derive_percentile_scale(DType::int8, weights, 1), 10.0f / 127);
  EXPECT_EQ(derive_percentile_scale(DType::int8, weights, 0.95), 10.0f / 127);
  EXPECT_EQ(derive_percentile_scale(DType::int8, weights, 0.9), 9.0f / 127);
  EXPECT_EQ(derive_percentile_scale(DType::int8, weights, 0.5), 5.0f / 127);
  EXPECT_EQ(derive_percentile_scale(DType::int8, weights, 1e-9), 1.0f / 127);
  EXPECT_EQ(derive_percentile_scale(DType::uint8, Weights{-10, 1, 2, 3}, 1), 3.0f / 255);
}

TEST(DerivePercentileScale, OneHundredPercentIsDeriveScale) {
  const Weights weights = gaussian(1001);
  for (const DTypeInfo& type : kDTypes) {
    EXPECT_EQ(derive_percentile_scale(type.id, weights, 1), derive_scale(type.id, weights)) << type.name;
  }
}

TEST(DerivePercentileScale, HasEdges) {
  for (const double wrong : {0.0, -0.1, 1.0001, 99.0, std::nan("")}) {
    EXPECT_THROW(derive_percentile_scale(DType::int8, Weights{1}, wrong), UsageError) << wrong;
  }
  EXPECT_EQ(derive_percentile_scale(DType::int8, {}, 0.5), 1);
  EXPECT_EQ(derive_percentile_scale(DType::int8, Weights{NAN, NAN}, 0.5), 1);
  EXPECT_EQ(derive_percentile_scale(DType::int8, Weights{0, 0, 5}, 0.5), 1) << "zero is not a valid scale";
  EXPECT_EQ(derive_percentile_scale(DType::int8, Weights{NAN, 127}, 0.01), 1) << "NaN is passed over";
}

double squared_error(DType dtype, const Weights& weights, const Weights& importance, float scale) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i])) continue;
    const double e =
        static_cast<double>(weights[i]) - static_cast<double>(simulate_precision(weights[i], dtype, scale));
    sum += e * e * (importance.empty() ? 1.0 : static_cast<double>(importance[i]));
  }
  return sum;
}

TEST(DeriveMseScale, IsNeverWorseThanAbsmax) {
  Weights outlier = gaussian(2000, 3);
  outlier[77] = 40;
  Weights broken = gaussian(500, 4);
  broken[3] = NAN;
  broken[9] = INFINITY;
  Weights importance = uniform(2000, 5);
  for (float& f : importance) f = std::fabs(f);
  for (const DTypeInfo& type : kDTypes) {
    for (const Weights& weights : {gaussian(3000), uniform(3000), outlier, broken, Weights{1}, Weights{0, 0}, Weights{},
                                   Weights{NAN}, Weights{1e-38f, 2e-38f}, Weights{3e38f, -1e38f}}) {
      const float scale = derive_mse_scale(type.id, weights);
      ASSERT_TRUE(scale > 0 && std::isfinite(scale)) << type.name;
      EXPECT_LE(squared_error(type.id, weights, {}, scale),
                squared_error(type.id, weights, {}, derive_scale(type.id, weights)))
          << type.name << ", " << weights.size() << " weights";
    }
    const float scale = derive_mse_scale(type.id, outlier, importance);
    EXPECT_LE(squared_error(type.id, outlier, importance, scale),
              squared_error(type.id, outlier, importance, derive_scale(type.id, outlier)))
        << type.name << " with importance";
  }
}

TEST(DeriveMseScale, GainsMuchOnFewBits) {
  const Weights weights = gaussian(20'000);
  for (const DType dtype : {DType::int4, DType::int2, DType::ternary}) {
    const double mse = squared_error(dtype, weights, {}, derive_mse_scale(dtype, weights));
    const double absmax = squared_error(dtype, weights, {}, derive_scale(dtype, weights));
    EXPECT_LT(mse, 0.75 * absmax) << name(dtype);
  }
}

TEST(DeriveMseScale, FollowsTheImportance) {
  const Weights weights = {1, 1.1f, 0.9f, 30};
  const float small = derive_mse_scale(DType::int4, weights, Weights{1, 1, 1, 0});
  EXPECT_LT(small, 2.5f) << "the outlier weighs nothing";
  EXPECT_GT(derive_mse_scale(DType::int4, weights, Weights{0, 0, 0, 1}), 3.0f);
  EXPECT_THROW(derive_mse_scale(DType::int4, weights, Weights{1, 1}), ShapeError);
}

template <Numeric T>
void expect_codes_survive(const Weights& weights, float scale) {
  for (const float w : weights) {
    const T code = quantize_value<T>(w, scale);
    ASSERT_TRUE(quantize_value<T>(dequantize_value<T>(code, scale), scale) == code)
        << name(dtype_of<T>) << " under scale " << scale << ": " << w;
  }
}

// Integers of 32 and 64 bits never saturate: under a scale below that of the maximum they would take codes beyond 2^20,
// which the float arithmetic of a round trip cannot hold (spec §3.2 [D10]).
TEST(RoundTrip, SurvivesEveryDerivedScale) {
  Weights weights = gaussian(2000);
  weights[5] = 11.3f;
  for (const DTypeInfo& type : kDTypes) {
    visit(type.id, [&]<class T>(std::type_identity<T>) {
      expect_codes_survive<T>(weights, derive_scale(type.id, weights));
      expect_codes_survive<T>(weights, derive_mse_scale(type.id, weights));
      expect_codes_survive<T>(weights, derive_percentile_scale(type.id, weights, 0.01));
    });
  }
}

double cosine(DType dtype, const Weights& weights, float scale) {
  double dot = 0, of_weights = 0, of_result = 0;
  for (const float w : weights) {
    const double a = w;
    const double b = simulate_precision(w, dtype, scale);
    dot += a * b;
    of_weights += a * a;
    of_result += b * b;
  }
  return dot / std::sqrt(of_weights * of_result);
}

TEST(Cosine, IsAboutThatOfTheSpecification) {
  struct Wanted {
    DType dtype;
    double gaussian, uniform;
    double slack;  // of the Gaussian: the largest of 100 000 draws varies
  };
  constexpr Wanted kRows[] = {
      {DType::int8, 0.99996, 0.99999, 0.00002}, {DType::int4, 0.986, 0.997, 0.004},
      {DType::fp4, 0.992, 0.994, 0.002},        {DType::int2, 0.48, 0.918, 0.09},
      {DType::ternary, 0.48, 0.918, 0.09},      {DType::binary, 0.797, 0.866, 0.003},
  };
  const Weights normal = gaussian(100'000);
  const Weights even = uniform(100'000);
  for (const Wanted& row : kRows) {
    EXPECT_NEAR(cosine(row.dtype, normal, derive_scale(row.dtype, normal)), row.gaussian, row.slack) << name(row.dtype);
    EXPECT_NEAR(cosine(row.dtype, even, derive_scale(row.dtype, even)), row.uniform, 0.001) << name(row.dtype);
  }
  EXPECT_NEAR(cosine(DType::ternary, normal, derive_absmean_scale(normal)), 0.887, 0.002);
  EXPECT_NEAR(cosine(DType::ternary, even, derive_absmean_scale(even)), 0.937, 0.002);
}

constexpr DType kUnsigned[] = {DType::uint64, DType::uint32, DType::uint16, DType::uint8, DType::uint4, DType::uint2};

/// sqrt(mean squared error / mean square) of weights rounded one at a time.
double relative_error(DType dtype, const Weights& weights, AsymmetricScale by) {
  double noise = 0, signal = 0;
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    for (const float w : weights) {
      const float back = dequantize_value<T>(quantize_value<T>(w, by.scale, by.zero_point), by.scale, by.zero_point);
      noise += std::pow(static_cast<double>(w) - static_cast<double>(back), 2);
      signal += std::pow(static_cast<double>(w), 2);
    }
  });
  return std::sqrt(noise / signal);
}

TEST(AsymmetricScale, SpansTheRangeOfTheWeights) {
  // 4 / 255 and 1 / (4 / 255) = 63.75, by hand.
  EXPECT_EQ(derive_asymmetric_scale(DType::uint8, Weights{-1, 3, 0.5f}), (AsymmetricScale{4.0f / 255, 64}));
  EXPECT_EQ(derive_asymmetric_scale(DType::uint2, Weights{-1, 3}), (AsymmetricScale{4.0f / 3, 1}));
  EXPECT_EQ(derive_asymmetric_scale(DType::uint4, Weights{-2, -1, NAN}), (AsymmetricScale{2.0f / 15, 15}))
      << "0 is within the range";
  EXPECT_EQ(derive_asymmetric_percentile_scale(DType::uint8, Weights{-10, 1, 2, 3}, 0.75),
            (AsymmetricScale{6.0f / 255, 128}))
      << "limited to ±3";
}

TEST(AsymmetricScale, IsThePlainScaleWhereNoZeroPointIsNeeded) {
  const Weights positive = {0.5f, 0, 3}, both = {0.5f, -3, 2};
  for (const DTypeInfo& type : kDTypes) {
    const bool is_unsigned = type.kind == NumberKind::unsigned_integer;
    for (const Weights& weights : is_unsigned ? std::vector<Weights>{positive} : std::vector<Weights>{positive, both}) {
      EXPECT_EQ(derive_asymmetric_scale(type.id, weights), (AsymmetricScale{derive_scale(type.id, weights), 0}));
      EXPECT_EQ(derive_asymmetric_mse_scale(type.id, weights),
                (AsymmetricScale{derive_mse_scale(type.id, weights), 0}));
      EXPECT_EQ(derive_asymmetric_percentile_scale(type.id, weights, 0.9),
                (AsymmetricScale{derive_percentile_scale(type.id, weights, 0.9), 0}));
    }
  }
}

TEST(AsymmetricScale, NoWeightIsOffByMoreThanHalfAScale) {
  const Weights weights = gaussian(5000);
  for (const DType dtype : kUnsigned) {
    const AsymmetricScale by = derive_asymmetric_scale(dtype, weights);
    visit(dtype, [&]<class T>(std::type_identity<T>) {
      for (const float w : weights) {
        const T code = quantize_value<T>(w, by.scale, by.zero_point);
        EXPECT_NEAR(dequantize_value<T>(code, by.scale, by.zero_point), w, by.scale * 0.5001f) << name(dtype);
      }
    });
  }
}

TEST(AsymmetricScale, UnsignedTypesRoundAsWellAsSignedOnes) {
  const std::pair<DType, DType> kPairs[] = {{DType::uint64, DType::int64}, {DType::uint32, DType::int32},
                                            {DType::uint16, DType::int16}, {DType::uint8, DType::int8},
                                            {DType::uint4, DType::int4},   {DType::uint2, DType::int2}};
  for (const auto& [without_sign, with_sign] : kPairs) {
    for (const Weights& weights : {gaussian(20000), uniform(20000)}) {
      const double wanted = relative_error(with_sign, weights, {derive_mse_scale(with_sign, weights), 0});
      const double got = relative_error(without_sign, weights, derive_asymmetric_mse_scale(without_sign, weights));
      // Of 32 and 64 bits both types use 2^20 codes for their largest number: those with a sign have twice as many.
      EXPECT_LE(got, (bits(with_sign) < 32 ? 1.05 : 2.1) * wanted) << name(without_sign);
      EXPECT_GT(relative_error(without_sign, weights, {derive_mse_scale(without_sign, weights), 0}), 0.65)
          << "without a zero point half of the signal is lost";
    }
  }
}

TEST(AsymmetricScale, TheSearchIsNeverWorseThanTheRange) {
  Weights skewed = gaussian(3000);
  for (float& w : skewed) w = w * w - 0.5f;
  for (const DType dtype : kUnsigned) {
    for (const Weights& weights : {gaussian(3000), skewed, Weights{-1e-9f, 1}, Weights{-3}}) {
      EXPECT_LE(relative_error(dtype, weights, derive_asymmetric_mse_scale(dtype, weights)),
                relative_error(dtype, weights, derive_asymmetric_scale(dtype, weights)) * (1 + 1e-12))
          << name(dtype) << ", " << weights.size();
    }
  }
}

TEST(AsymmetricScale, WeightsAtTheEndsOfFloat32StayFinite) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const DType dtype : kUnsigned) {
    for (const Weights& weights : {Weights{-kMost, kMost}, Weights{-kMost, 1}, Weights{-1, kMost}}) {
      const AsymmetricScale by = derive_asymmetric_scale(dtype, weights);
      visit(dtype, [&]<class T>(std::type_identity<T>) {
        for (const float w : weights) {
          const T code = quantize_value<T>(w, by.scale, by.zero_point);
          EXPECT_TRUE(std::isfinite(dequantize_value<T>(code, by.scale, by.zero_point))) << name(dtype) << " of " << w;
        }
      });
    }
  }
}

TEST(AsymmetricScale, RefusesWhatThePlainSearchesRefuse) {
  EXPECT_THROW(derive_asymmetric_percentile_scale(DType::uint8, Weights{-1, 1}, 0), UsageError);
  EXPECT_THROW(derive_asymmetric_mse_scale(DType::uint8, Weights{-1, 1}, Weights{1}), ShapeError);
}

}  // namespace
}  // namespace imago
