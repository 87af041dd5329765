// The short version of `make bench-learning`: digits in float32, rounded afterwards, and trained through the rounding.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "imago/train.h"
#include "testing/dense_stack.h"
#include "testing/one_thread.h"

namespace imago {
namespace {

TrainOptions digit_options() {
  TrainOptions options{.epochs = 15, .batch = 32};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.003f, .warmup_steps = 20};
  options.seed = 1;
  return options;
}

TEST(DigitLearning, TrainingThroughRoundingKeepsWhatRoundingLoses) {
  const testing::OneThread one_thread;
  constexpr int kWidths[] = {65, 96, 96, 10};
  const Dataset seen = drawn_digits(2500, 1), unseen = drawn_digits(1000, 2);
  Network network = testing::dense_stack(kWidths, Activation::relu, 1);
  train(network, seen, digit_options());
  const double full = accuracy(network, unseen);
  RecordProperty("float32", std::to_string(full));
  EXPECT_GE(full, 0.97);

  struct Promise {
    DType dtype;
    double distance;
  };
  for (const Promise& promise : {Promise{DType::int4, 0.01}, {DType::ternary, 0.03}, {DType::binary, 0.08}}) {
    const std::string type(info(promise.dtype).name);
    Network derived = testing::copy_in(network, promise.dtype), best = testing::copy_in(network, promise.dtype);
    testing::fix_best_scales(best, promise.dtype);

    Network aware = testing::copy_in(network, promise.dtype);
    TrainOptions options = digit_options();
    options.epochs = 8;
    options.schedule.rate = 0.002f;
    options.optimizer.learn_scales = true;
    train(aware, seen, options);
    const double rounded = accuracy(derived, unseen), rounded_best = accuracy(best, unseen);
    const double trained = accuracy(aware, unseen);
    RecordProperty(type + "_rounded", std::to_string(rounded));
    RecordProperty(type + "_rounded_best", std::to_string(rounded_best));
    RecordProperty(type + "_trained", std::to_string(trained));
    EXPECT_GE(trained, full - promise.distance) << type;
    EXPECT_GT(trained, rounded) << type;
    EXPECT_GT(trained, rounded_best) << type;
  }
}

TEST(DrawnDigits, AreTheSameForTheSameSeedAndEachClassIsAsOften) {
  const Dataset a = drawn_digits(100, 5), b = drawn_digits(100, 5), c = drawn_digits(100, 6);
  EXPECT_TRUE(std::ranges::equal(a.x.values(), b.x.values()));
  EXPECT_FALSE(std::ranges::equal(a.x.values(), c.x.values()));
  for (int digit = 0; digit < 10; ++digit) {
    EXPECT_EQ(std::ranges::count(a.y.values(), static_cast<float>(digit)), 10) << digit;
  }
  for (const float pixel : a.x.values()) ASSERT_TRUE(pixel >= 0 && pixel <= 1);
}

}  // namespace
}  // namespace imago
