#include "quant/scheme.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "imago/numeric.h"
#include "imago/weights.h"
#include "weights/random.h"

namespace imago {
namespace {

constexpr std::size_t kRows = 3;
constexpr std::size_t kCols = 128;

/// Rows of very different size: a scale that looks at the wrong row is far off.
std::vector<float> uneven_weights() {
  std::vector<float> weights(kRows * kCols);
  fill_normal(weights, 11, 1);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] *= std::exp2(static_cast<float>(i / 32) - 6.0f);
  return weights;
}

Scheme scheme_of(DType dtype, Granularity granularity, Calibrator calibrator) {
  Scheme scheme(dtype);
  scheme.granularity = granularity;
  scheme.group = granularity == Granularity::group ? 32 : 0;
  scheme.calibrator = calibrator;
  scheme.percentile = 0.9;
  scheme.zero_points = false;  // scales alone; tests of zero points say so
  return scheme;
}

std::vector<float> derive(const Scheme& scheme, std::span<const float> weights, std::size_t rows) {
  return derive_scales(scheme, scale_layout(scheme, rows, rows == 0 ? 0 : weights.size() / rows), weights).scales;
}

double magnitude(DType dtype, float w) {
  const double value = static_cast<double>(w);
  return info(dtype).kind == NumberKind::unsigned_integer ? std::max(value, 0.0) : std::fabs(value);
}

double squared_error(DType dtype, std::span<const float> weights, float scale) {
  double sum = 0;
  for (const float w : weights) {
    const double error = static_cast<double>(w) - static_cast<double>(simulate_precision(w, dtype, scale));
    sum += error * error;
  }
  return sum;
}

/// The rules of imago/numeric.h for scales and codes, in double.
double expected_scale(const Scheme& scheme, std::span<const float> weights) {
  const DType dtype = scheme.format.dtype();
  std::vector<double> magnitudes;
  for (const float w : weights) magnitudes.push_back(magnitude(dtype, w));
  double mean = 0;
  for (const double m : magnitudes) mean += m / static_cast<double>(magnitudes.size());
  if (scheme.calibrator == Calibrator::absmean || info(dtype).kind == NumberKind::binary) return mean;
  std::ranges::sort(magnitudes);
  const bool takes_part = scheme.calibrator == Calibrator::percentile && bits(dtype) < 32;
  const double fraction = takes_part ? scheme.percentile : 1.0;
  const std::size_t position = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(magnitudes.size())));
  return magnitudes[position - 1] / static_cast<double>(info(dtype).scale_divisor);
}

TEST(DeriveScales, EachScaleSeesItsOwnWeightsOnly) {
  const std::vector<float> weights = uneven_weights();
  for (const DTypeInfo& type : kDTypes) {
    if (!is_scaled(type.id)) continue;
    for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile, Calibrator::absmean}) {
      if (calibrator == Calibrator::absmean && type.id != DType::ternary) continue;
      for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
        const Scheme scheme = scheme_of(type.id, granularity, calibrator);
        const ScaleLayout layout = scale_layout(scheme, kRows, kCols);
        const std::vector<float> scales = derive_scales(scheme, layout, weights).scales;
        ASSERT_EQ(scales.size(), layout.count);
        for (std::size_t i = 0; i < scales.size(); ++i) {
          const double expected = expected_scale(scheme, std::span(weights).subspan(i * layout.group, layout.group));
          EXPECT_NEAR(static_cast<double>(scales[i]), expected, expected * 1e-6)
              << type.name << " calibrator " << static_cast<int>(calibrator) << " scale " << i;
        }
      }
    }
  }
}

TEST(DeriveScales, MseIsNeverWorseThanAbsmaxAndMostlyBetter) {
  const std::vector<float> weights = uneven_weights();
  for (const DType dtype : {DType::int4, DType::fp4, DType::int2, DType::ternary, DType::uint4}) {
    const Scheme mse = scheme_of(dtype, Granularity::group, Calibrator::mse);
    const Scheme absmax = scheme_of(dtype, Granularity::group, Calibrator::absmax);
    const std::vector<float> best = derive(mse, weights, kRows);
    const std::vector<float> widest = derive(absmax, weights, kRows);
    double total_best = 0;
    double total_widest = 0;
    for (std::size_t i = 0; i < best.size(); ++i) {
      const std::span<const float> group = std::span(weights).subspan(i * 32, 32);
      const double error_best = squared_error(dtype, group, best[i]);
      const double error_widest = squared_error(dtype, group, widest[i]);
      EXPECT_LE(error_best, error_widest) << name(dtype) << " group " << i;
      total_best += error_best;
      total_widest += error_widest;
    }
    EXPECT_LT(total_best, total_widest) << name(dtype);
  }
}

TEST(DeriveScales, WideIntegersKeepTheirCodesBelow2To20) {
  std::vector<float> weights = uneven_weights();
  weights.back() = 1e4f;  // a percentile would leave it far outside
  for (const DType dtype : {DType::int32, DType::int64, DType::uint32, DType::uint64}) {
    for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile, Calibrator::mse}) {
      const Scheme scheme = scheme_of(dtype, Granularity::tensor, calibrator);
      EXPECT_EQ(derive(scheme, weights, kRows), std::vector<float>{1e4f / 1048576}) << name(dtype);
    }
  }
}

TEST(DeriveScales, LongTensorsAreSearchedToTheLastWeight) {
  // More than one part of the parallel search, with the extremes at both ends of the last one.
  std::vector<float> weights(100'001, 0.25f);
  weights[98'305] = -8;
  weights.back() = 4;
  EXPECT_EQ(derive(DType::int8, weights, 1), std::vector<float>{8.0f / 127});
  Scheme without_zero(DType::uint8);
  without_zero.zero_points = false;
  EXPECT_EQ(derive(without_zero, weights, 1), std::vector<float>{4.0f / 255}) << "looks at w > 0 only";
  const ScaleValues both = derive_scales(DType::uint8, {1, weights.size()}, weights);
  EXPECT_EQ(both.scales, std::vector<float>{12.0f / 255});
  EXPECT_EQ(both.zero_points, std::vector<float>{170}) << "8 / (12 / 255)";
  weights.back() = std::nanf("");
  EXPECT_EQ(derive(DType::int8, weights, 1), std::vector<float>{8.0f / 127}) << "NaN is passed over";
  weights.back() = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(derive(DType::int8, weights, 1), std::vector<float>{1.0f}) << "no finite scale: 1";
}

TEST(DeriveScales, ZerosNegativesAndNothingGiveOne) {
  const std::vector<float> zeros(64);
  const std::vector<float> negatives(64, -0.5f);
  for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
    for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile, Calibrator::mse}) {
      for (const DType dtype : {DType::int8, DType::fp4, DType::ternary}) {
        for (const float scale : derive(scheme_of(dtype, granularity, calibrator), zeros, 2)) EXPECT_EQ(scale, 1.0f);
      }
      const Scheme unsigned_scheme = scheme_of(DType::uint8, granularity, calibrator);
      for (const float scale : derive(unsigned_scheme, negatives, 2)) EXPECT_EQ(scale, 1.0f);
    }
  }
  EXPECT_EQ(derive(DType::int8, {}, 0), std::vector<float>{1.0f});
  EXPECT_EQ(derive(DType::binary, {}, 0), std::vector<float>{1.0f});
  EXPECT_EQ(derive(DType::binary, zeros, 1), std::vector<float>{1.0f});
  EXPECT_TRUE(derive(scheme_of(DType::int8, Granularity::row, Calibrator::mse), {}, 0).empty());
  EXPECT_TRUE(derive(DType::float16, zeros, 1).empty());
}

// threats.md 40 and 41: whatever the weights, scales are finite and not 0, and what they decode to is finite.
TEST(DeriveScales, HostileWeightsGiveFiniteVersions) {
  constexpr float kOutlier = 1e38f, kDenormal = 1e-45f, kLarge = std::numeric_limits<float>::max();
  const auto fill = [](auto value_at) {
    std::vector<float> weights(256);
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = value_at(i);
    return weights;
  };
  const std::vector<std::vector<float>> cases = {
      fill([](std::size_t) { return 0.0f; }), fill([](std::size_t) { return 0.3f; }),
      fill([](std::size_t) { return kLarge; }), fill([](std::size_t) { return -kLarge; }),
      // A percentile finds a scale under which the last one saturates: int8 has a code beyond its Q, -128.
      fill([](std::size_t i) { return i == 255 ? -kLarge : -kLarge / 1.006f; }),
      fill([](std::size_t i) { return i == 255 ? -kLarge : -kLarge / 1.6f; }),
      fill([](std::size_t i) { return i == 77 ? kOutlier : 0.01f; }),
      fill([](std::size_t i) { return i == 77 ? -kOutlier : -0.01f; }),
      fill([](std::size_t i) { return i % 2 == 0 ? kOutlier : -kOutlier; }),
      fill([](std::size_t i) { return i % 2 == 0 ? 0.7f : -0.7f; }),
      fill([](std::size_t i) { return i % 2 == 0 ? kDenormal : -kDenormal; }),
      fill([](std::size_t i) { return static_cast<float>(i) * 1e-40f; }),
      fill([](std::size_t i) { return i == 0 ? kDenormal : 0.0f; })};
  for (const DTypeInfo& type : kDTypes) {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      if (granularity != Granularity::tensor && !is_scaled(type.id)) continue;
      for (const Calibrator calibrator :
           {Calibrator::absmax, Calibrator::percentile, Calibrator::mse, Calibrator::absmean}) {
        if (calibrator == Calibrator::absmean && type.id != DType::ternary) continue;
        if (calibrator != Calibrator::absmax && !is_scaled(type.id)) continue;
        const Scheme scheme = scheme_of(type.id, granularity, calibrator);
        for (std::size_t i = 0; i < cases.size(); ++i) {
          WeightStore store(4, 64);
          store.set_master(cases[i]);
          const std::vector<float> got = store.active(scheme);
          for (const float w : got) {  // types without a scale overflow to infinity, as they are defined
            ASSERT_TRUE(is_scaled(type.id) ? std::isfinite(w) : !std::isnan(w)) << type.name << " case " << i;
          }
          const std::shared_ptr<const Version> version = store.morph(scheme);
          if (version == nullptr) continue;
          for (const float scale : version->scales()) {
            ASSERT_TRUE(std::isfinite(scale) && scale > 0) << type.name << " case " << i << ": " << scale;
          }
        }
      }
    }
  }
}

TEST(DeriveScales, DoNotDependOnTheNumberOfThreads) {
  std::vector<float> weights(6 * 32'768);
  fill_normal(weights, 5, 1);
  const int threads = pool_threads();
  for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile, Calibrator::mse}) {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      const Scheme scheme = scheme_of(DType::int4, granularity, calibrator);
      set_pool_threads(1);
      const std::vector<float> alone = derive(scheme, weights, 6);
      set_pool_threads(5);
      EXPECT_EQ(derive(scheme, weights, 6), alone);
    }
  }
  set_pool_threads(threads);
}

TEST(DeriveScales, EachZeroPointSeesItsOwnWeightsOnly) {
  const std::vector<float> weights = uneven_weights();
  for (const DTypeInfo& type : kDTypes) {
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      if (!is_scaled(type.id)) continue;
      Scheme scheme = scheme_of(type.id, granularity, Calibrator::absmax);
      scheme.zero_points = true;
      const ScaleLayout layout = scale_layout(scheme, kRows, kCols);
      const ScaleValues found = derive_scales(checked_scheme(scheme), layout, weights);
      if (type.kind != NumberKind::unsigned_integer) {
        EXPECT_TRUE(found.zero_points.empty()) << type.name;
        continue;
      }
      ASSERT_EQ(found.zero_points.size(), layout.count) << type.name;
      for (std::size_t i = 0; i < layout.count; ++i) {
        const auto [least, most] = std::ranges::minmax(std::span(weights).subspan(i * layout.group, layout.group));
        const double low = std::min(0.0, static_cast<double>(least)), high = std::max(0.0, static_cast<double>(most));
        const double wanted = (high - low) / static_cast<double>(type.scale_divisor);
        EXPECT_NEAR(static_cast<double>(found.scales[i]), wanted, 1e-6 * wanted) << type.name << " " << i;
        EXPECT_NEAR(static_cast<double>(found.zero_points[i]), -low / wanted, 0.5001) << type.name << " " << i;
      }
    }
  }
}

TEST(DeriveScales, ZeroPointsThatAreAll0AreLeftOut) {
  const std::vector<float> positive(64, 0.5f);
  EXPECT_TRUE(derive_scales(DType::uint8, {1, 64}, positive).zero_points.empty());
}

}  // namespace
}  // namespace imago
