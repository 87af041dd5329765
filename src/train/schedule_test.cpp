#include <gtest/gtest.h>

#include <cmath>

#include "imago/error.h"
#include "imago/train.h"

namespace imago {
namespace {

TEST(Schedule, ConstantIsConstant) {
  const Schedule schedule{.rate = 0.5f};
  for (const std::uint64_t step : {0u, 1u, 99u, 1000u}) EXPECT_EQ(schedule.at(step, 100), 0.5f);
}

TEST(Schedule, WarmUpClimbsToTheRate) {
  const Schedule schedule{.rate = 1, .warmup_steps = 4};
  EXPECT_FLOAT_EQ(schedule.at(0, 100), 0.25f);
  EXPECT_FLOAT_EQ(schedule.at(1, 100), 0.5f);
  EXPECT_FLOAT_EQ(schedule.at(3, 100), 1);
  EXPECT_FLOAT_EQ(schedule.at(4, 100), 1);
}

TEST(Schedule, CosineFallsFromTheRateToItsFraction) {
  const Schedule schedule{.kind = ScheduleKind::cosine, .rate = 2, .final_fraction = 0.1f};
  EXPECT_FLOAT_EQ(schedule.at(0, 100), 2);
  EXPECT_FLOAT_EQ(schedule.at(50, 100), 1.1f);
  EXPECT_NEAR(schedule.at(25, 100), 0.2 + 1.8 * (1 + std::sqrt(0.5)) / 2, 1e-6);
  EXPECT_FLOAT_EQ(schedule.at(100, 100), 0.2f);
  EXPECT_FLOAT_EQ(schedule.at(1000, 100), 0.2f);
}

TEST(Schedule, CosineStartsAfterTheWarmUp) {
  const Schedule schedule{.kind = ScheduleKind::cosine, .rate = 1, .warmup_steps = 10};
  EXPECT_FLOAT_EQ(schedule.at(4, 110), 0.5f);
  EXPECT_FLOAT_EQ(schedule.at(10, 110), 1);
  EXPECT_NEAR(schedule.at(60, 110), 0.5, 1e-6);
  EXPECT_NEAR(schedule.at(110, 110), 0, 1e-6);
  EXPECT_TRUE(std::isfinite(schedule.at(12, 10)));  // a warm-up longer than the run
}

TEST(Schedule, HasNames) {
  for (const ScheduleKind kind : {ScheduleKind::constant, ScheduleKind::cosine}) {
    EXPECT_EQ(parse_schedule(name(kind)), kind);
  }
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adam, OptimizerKind::adamw}) {
    EXPECT_EQ(parse_optimizer(name(kind)), kind);
  }
  EXPECT_THROW(parse_schedule("linear"), UsageError);
  try {
    parse_optimizer("lion");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("adamw"), std::string::npos);
  }
}

}  // namespace
}  // namespace imago
