// The slope of a learned scale against its definition, one weight at a time in float64.

#include "train/learned_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace imago {
namespace {

TEST(LearnedScale, SlopeIsThatOfLsq) {
  const std::vector<float> weights{0.1f, -0.26f, 0.74f, -3, 2, 0}, gradient{1, -2, 0.5f, 0.25f, -1, 3};
  WeightStore store(weights.size());
  store.set_master(weights);
  store.set_scale(DType::int2, 0.5f);
  // Codes 0, -1, 1, -2 and 1, both saturated, 0. Slopes of code · scale by ln(scale): 0.5 · code - w within the range.
  const double sum = 1 * (0 - 0.1) - 2 * (-0.5 + 0.26) + 0.5 * (0.5 - 0.74) + 0.25 * -1 - 1 * 0.5 + 3 * 0;
  EXPECT_NEAR(log_scale_slope(store, DType::int2, gradient), sum / std::sqrt(6.0 * 1), 1e-6);
}

TEST(LearnedScale, BinarySlopeIsThatOfTheSign) {
  const std::vector<float> weights{0.1f, -5, 2}, gradient{1, 2, 4};
  WeightStore store(3);
  store.set_master(weights);
  store.set_scale(DType::binary, 0.5f);
  EXPECT_NEAR(log_scale_slope(store, DType::binary, gradient), (0.5 - 1 + 2) / std::sqrt(3.0), 1e-6);
}

TEST(LearnedScale, StartsAtTheLeastSquaredErrorOrWhereItWasSet) {
  WeightStore store(1000);
  store.he_randomize(1, 2);
  Scheme best(DType::int4);
  best.calibrator = Calibrator::mse;
  const float wanted = store.morph(best)->scale();
  EXPECT_TRUE(start_scale(store, DType::int4));
  EXPECT_EQ(store.scale(DType::int4), wanted);
  EXPECT_FALSE(start_scale(store, DType::int4));
  EXPECT_EQ(store.scale(DType::int4), wanted);
}

TEST(LearnedScale, KeepsItsZeroPoint) {
  WeightStore store(1000);
  store.he_randomize(1, 2);
  Scheme best(DType::uint4);
  best.calibrator = Calibrator::mse;
  const float zero_point = store.morph(best)->zero_point();
  EXPECT_GT(zero_point, 0);
  EXPECT_TRUE(start_scale(store, DType::uint4));
  EXPECT_EQ(store.zero_point(DType::uint4), zero_point);
  move_scale(store, DType::uint4, 0.1f);
  EXPECT_EQ(store.zero_point(DType::uint4), zero_point);
}

TEST(LearnedScale, StaysPositiveAndFinite) {
  WeightStore store(4);
  store.set_scale(DType::int4, 0.5f);
  move_scale(store, DType::int4, std::log(2.0f));
  EXPECT_FLOAT_EQ(store.scale(DType::int4), 1);
  move_scale(store, DType::int4, -1000);
  EXPECT_FLOAT_EQ(store.scale(DType::int4), 1);
  move_scale(store, DType::int4, 1000);
  EXPECT_FLOAT_EQ(store.scale(DType::int4), 1);
}

TEST(LearnedScale, OnlyIntegersUpToEightBitsWithOneScale) {
  LayerConfig config;
  for (const DType dtype : {DType::int8, DType::uint8, DType::int4, DType::uint4, DType::int2, DType::uint2,
                            DType::ternary, DType::binary}) {
    config.dtype = dtype;
    EXPECT_TRUE(has_learnable_scale(config)) << info(dtype).name;
  }
  for (const DType dtype : {DType::float32, DType::float16, DType::fp4, DType::fp8e4m3, DType::int16, DType::int64}) {
    config.dtype = dtype;
    EXPECT_FALSE(has_learnable_scale(config)) << info(dtype).name;
  }
  config.dtype = DType::int4;
  config.granularity = Granularity::row;
  EXPECT_FALSE(has_learnable_scale(config));
}

}  // namespace
}  // namespace imago
