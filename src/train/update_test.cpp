// The formulas of the optimizers against the traces of PyTorch.

#include "train/update.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/weights.h"
#include "testing/safetensors.h"

namespace imago {
namespace {

std::vector<float> random_values(std::size_t count, std::uint64_t seed) {
  WeightStore store(count);
  store.randomize(seed, 1);
  return {store.master().begin(), store.master().end()};
}

struct Arrays {
  std::vector<float> weights, moment1, moment2;
};

Arrays arrays_for(OptimizerKind kind, std::vector<float> weights) {
  const std::size_t count = weights.size();
  return {std::move(weights), std::vector<float>(moment_count(kind) >= 1 ? count : 0),
          std::vector<float>(moment_count(kind) >= 2 ? count : 0)};
}

void step(Arrays& arrays, const OptimizerOptions& options, std::uint64_t number, double rate,
          std::span<const float> gradient, bool not_negative = false, double factor = 1) {
  UpdateRule(options, number, rate, factor)
      .apply(arrays.weights, gradient, arrays.moment1, arrays.moment2, not_negative);
}

void expect_trace(const OptimizerOptions& options) {
  const testing::SafetensorsFile file("torch/optim_" + std::string(name(options.kind)) + ".safetensors");
  const std::vector<float> trace = file.values<float>("trace"), gradients = file.values<float>("grads");
  const std::size_t count = file.shape("grads").at(1), steps = file.shape("grads").at(0);
  Arrays arrays = arrays_for(options.kind, {trace.begin(), trace.begin() + static_cast<std::ptrdiff_t>(count)});
  for (std::size_t s = 0; s < steps; ++s) {
    step(arrays, options, s + 1, 0.05, std::span(gradients).subspan(s * count, count));
    for (std::size_t i = 0; i < count; ++i) {
      const float wanted = trace[(s + 1) * count + i];
      EXPECT_NEAR(arrays.weights[i], wanted, 4e-7 * std::fmax(1, std::fabs(wanted))) << "step " << s << ", " << i;
    }
  }
}

TEST(Update, SgdIsThatOfTorch) { expect_trace({.kind = OptimizerKind::sgd}); }
TEST(Update, MomentumIsThatOfTorch) { expect_trace({.kind = OptimizerKind::momentum}); }
TEST(Update, AdamIsThatOfTorch) { expect_trace({.kind = OptimizerKind::adam}); }
TEST(Update, AdamWIsThatOfTorch) { expect_trace({.kind = OptimizerKind::adamw, .weight_decay = 0.1f}); }

TEST(Update, ClipsEachElementThenAppliesTheFactor) {
  Arrays arrays = arrays_for(OptimizerKind::sgd, {1, 1, 1});
  step(arrays, {.clip_element = 0.5f}, 1, 1, std::vector<float>{0.25f, 3, -7}, false, 0.5);
  EXPECT_EQ(arrays.weights, (std::vector<float>{0.875f, 0.75f, 1.25f}));
}

TEST(Update, WeightsBelowZeroBecomeZeroIfAsked) {
  const std::vector<float> gradient{1, -1, 5};
  Arrays free = arrays_for(OptimizerKind::sgd, {0.5f, 0.5f, 2});
  step(free, {}, 1, 1, gradient);
  EXPECT_EQ(free.weights, (std::vector<float>{-0.5f, 1.5f, -3}));
  Arrays bound = arrays_for(OptimizerKind::sgd, {0.5f, 0.5f, 2});
  step(bound, {}, 1, 1, gradient, true);
  EXPECT_EQ(bound.weights, (std::vector<float>{0, 1.5f, 0}));
}

TEST(Update, TheSameForEveryNumberOfThreads) {
  const int before = pool_threads();
  constexpr std::size_t kCount = 100'003;
  const OptimizerOptions options{.kind = OptimizerKind::adamw, .weight_decay = 0.1f};
  std::vector<std::vector<float>> results;
  std::vector<double> squares;
  for (const int threads : {1, 2, 3}) {
    set_pool_threads(threads);
    Arrays arrays = arrays_for(options.kind, random_values(kCount, 1));
    for (std::uint64_t s = 1; s <= 3; ++s) step(arrays, options, s, 0.01, random_values(kCount, 1 + s));
    results.push_back(arrays.weights);
    squares.push_back(clipped_square_sum(random_values(kCount, 9), 0));
  }
  set_pool_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(squares[0], squares[1]);
  EXPECT_EQ(squares[0], squares[2]);
}

TEST(Update, TheSquareSumGivesTheNormAndTellsWhatIsNotFinite) {
  EXPECT_TRUE(std::isfinite(clipped_square_sum({}, 0)));
  const std::vector<float> gradient{3, -4, 12};
  EXPECT_DOUBLE_EQ(clipped_square_sum(gradient, 0), 169);
  EXPECT_DOUBLE_EQ(clipped_square_sum(gradient, 4), 41);
  const std::vector<float> huge(100, std::numeric_limits<float>::max());
  EXPECT_TRUE(std::isfinite(clipped_square_sum(huge, 0)));
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::size_t at : {0, 7, 50'000, 100'002}) {
      std::vector<float> values(100'003, 0.5f);
      values[at] = bad;
      EXPECT_FALSE(std::isfinite(clipped_square_sum(values, 0))) << at;
      EXPECT_FALSE(std::isfinite(clipped_square_sum(values, 1))) << at;  // clipping does not hide it
    }
  }
}

TEST(Update, RefusesSettingsWithoutMeaning) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  check_optimizer({});
  check_optimizer({.kind = OptimizerKind::adamw, .weight_decay = 0.1f});
  for (const OptimizerOptions& options :
       {OptimizerOptions{.momentum = 1}, OptimizerOptions{.beta1 = -0.1f}, OptimizerOptions{.beta2 = 1},
        OptimizerOptions{.epsilon = nan}, OptimizerOptions{.clip_element = -1}, OptimizerOptions{.clip_norm = nan},
        OptimizerOptions{.kind = OptimizerKind::adam, .weight_decay = 0.1f}}) {
    EXPECT_THROW(check_optimizer(options), UsageError);
  }
}

}  // namespace
}  // namespace imago
