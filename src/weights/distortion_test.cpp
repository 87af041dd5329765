#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "weights/random.h"

namespace imago {
namespace {

TEST(Distortion, KnownNumbers) {
  const std::vector<float> reference{3, 0, -4, 0};
  const std::vector<float> got{3, 1, -4, 1};
  const Distortion d = measure_distortion(reference, got);
  EXPECT_NEAR(d.cosine, 25 / (5 * std::sqrt(27.0)), 1e-15);
  EXPECT_DOUBLE_EQ(d.rmse, std::sqrt(2.0 / 4));
  EXPECT_DOUBLE_EQ(d.relative_rmse, std::sqrt(2.0 / 25));
  EXPECT_DOUBLE_EQ(d.max_error, 1);
  EXPECT_DOUBLE_EQ(d.sqnr_db, 10 * std::log10(12.5));
}

TEST(Distortion, RmseDoesNotShrinkWithTheCount) {
  for (const std::size_t count : {1u, 100u, 40000u}) {
    const Distortion d = measure_distortion(std::vector<float>(count, 1.0f), std::vector<float>(count, 1.5f));
    EXPECT_DOUBLE_EQ(d.rmse, 0.5) << count;
    EXPECT_DOUBLE_EQ(d.relative_rmse, 0.5) << count;
    EXPECT_DOUBLE_EQ(d.cosine, 1) << count;
  }
}

TEST(Distortion, EqualArraysAreAtNoDistance) {
  std::vector<float> weights(1000);
  fill_normal(weights, 1, 0.3);
  for (const std::vector<float>& same : {weights, std::vector<float>(7), std::vector<float>()}) {
    const Distortion d = measure_distortion(same, same);
    EXPECT_EQ(d.cosine, 1);
    EXPECT_EQ(d.rmse, 0);
    EXPECT_EQ(d.relative_rmse, 0);
    EXPECT_EQ(d.max_error, 0);
    EXPECT_EQ(d.sqnr_db, std::numeric_limits<double>::infinity());
  }
}

TEST(Distortion, OneSideZero) {
  const std::vector<float> zero(2);
  const std::vector<float> some{1, -1};
  EXPECT_EQ(measure_distortion(some, zero).cosine, 0);
  EXPECT_DOUBLE_EQ(measure_distortion(some, zero).relative_rmse, 1);
  EXPECT_EQ(measure_distortion(zero, some).cosine, 0);
  EXPECT_EQ(measure_distortion(zero, some).relative_rmse, std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(measure_distortion(zero, some).rmse, 1);
}

TEST(Distortion, OppositeArraysHaveCosineMinusOne) {
  EXPECT_DOUBLE_EQ(measure_distortion(std::vector<float>{1, 2, 3}, std::vector<float>{-1, -2, -3}).cosine, -1);
}

TEST(Distortion, SquaresAreSummedInDouble) {
  const float huge = std::numeric_limits<float>::max();
  const Distortion d = measure_distortion(std::vector<float>{huge, huge}, std::vector<float>{huge, 0});
  EXPECT_NEAR(d.cosine, std::sqrt(0.5), 1e-15);
  EXPECT_DOUBLE_EQ(d.max_error, static_cast<double>(huge));
  // 2^-12 is lost beside 4096 in float32, ten thousand times over
  std::vector<float> reference(10001, 0.015625f);
  reference[0] = 64;
  const Distortion all = measure_distortion(reference, std::vector<float>(10001));
  EXPECT_NEAR(all.rmse, std::sqrt((4096 + 10000 * 0.000244140625) / 10001), 1e-12);
}

TEST(Distortion, LengthsMustAgree) {
  EXPECT_THROW(measure_distortion(std::vector<float>(3), std::vector<float>(4)), ShapeError);
}

TEST(Distortion, DoesNotDependOnTheNumberOfThreads) {
  std::vector<float> reference(100003);
  std::vector<float> got(reference.size());
  fill_normal(reference, 1, 1);
  fill_normal(got, 2, 1);
  const int threads = pool_threads();
  set_pool_threads(1);
  const Distortion alone = measure_distortion(reference, got);
  set_pool_threads(5);
  const Distortion together = measure_distortion(reference, got);
  set_pool_threads(threads);
  EXPECT_EQ(alone.cosine, together.cosine);
  EXPECT_EQ(alone.rmse, together.rmse);
  EXPECT_EQ(alone.max_error, together.max_error);
  EXPECT_EQ(alone.sqnr_db, together.sqnr_db);
}

}  // namespace
}  // namespace imago
