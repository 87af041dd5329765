// The training loop: what it calls when, what it skips, when it stops.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "imago/error.h"
#include "imago/train.h"

namespace imago {
namespace {

/// y = x · Aᵀ for a fixed A: what one linear layer can learn exactly.
Dataset linear_data(std::size_t examples, std::uint64_t seed = 1) {
  WeightStore store(examples * 3);
  store.randomize(seed, 1);
  Dataset data{Tensor<float>({examples, 3}), Tensor<float>({examples, 2})};
  for (std::size_t i = 0; i < examples; ++i) {
    for (std::size_t j = 0; j < 3; ++j) data.x[i * 3 + j] = store.master()[i * 3 + j];
    data.y[i * 2] = data.x[i * 3] - 2 * data.x[i * 3 + 1];
    data.y[i * 2 + 1] = 0.5f * data.x[i * 3 + 2];
  }
  return data;
}

Network linear_network() { return Network(layer_list(dense(3, 2)), 1); }

TEST(Train, FindsWhatALinearLayerCanLearn) {
  Network network = linear_network();
  const TrainResult result = train(network, linear_data(64), {.epochs = 60, .batch = 8, .schedule = {.rate = 0.3f}});
  ASSERT_EQ(result.epoch_loss.size(), 60u);
  EXPECT_GT(result.epoch_loss.front(), 0.1);
  EXPECT_LT(result.final_loss, 1e-8);
  EXPECT_EQ(result.final_loss, result.epoch_loss.back());
  EXPECT_EQ(result.steps, 480u);
  EXPECT_EQ(result.skipped_steps, 0u);
  EXPECT_FALSE(result.stopped_early);
  EXPECT_TRUE(result.validation_loss.empty());
  const float wanted[] = {1, -2, 0, 0, 0, 0.5f};
  for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(network.layers()[0].weights->master()[i], wanted[i], 1e-3);
}

TEST(Train, OneStepIsTheSpecsFormula) {
  Network network = linear_network();
  const std::vector<float> before(network.layers()[0].weights->master().begin(),
                                  network.layers()[0].weights->master().end());
  const Dataset data = linear_data(5);
  train(network, data, {.epochs = 1, .batch = 5, .schedule = {.rate = 0.1f}});
  for (std::size_t o = 0; o < 2; ++o) {
    for (std::size_t j = 0; j < 3; ++j) {
      double slope = 0;  // of sum (o - t)² / N
      for (std::size_t i = 0; i < 5; ++i) {
        double output = 0;
        for (std::size_t k = 0; k < 3; ++k) output += static_cast<double>(before[o * 3 + k]) * data.x[i * 3 + k];
        slope += (output - data.y[i * 2 + o]) * data.x[i * 3 + j] * 2 / 10;
      }
      EXPECT_NEAR(network.layers()[0].weights->master()[o * 3 + j], before[o * 3 + j] - 0.1 * slope, 1e-6);
    }
  }
}

TEST(Train, ReportsEveryStepAndStopsWhenTold) {
  Network network = linear_network();
  std::vector<TrainProgress> seen;
  TrainOptions options{.epochs = 3, .batch = 4, .schedule = {.rate = 0.5f, .warmup_steps = 5}};
  options.progress = [&](const TrainProgress& now) {
    seen.push_back(now);
    return true;
  };
  train(network, linear_data(10), options);
  ASSERT_EQ(seen.size(), 10u);  // 3 epochs of 3 steps, and the end
  EXPECT_EQ(seen[0].epoch, 1);
  EXPECT_EQ(seen[2].epoch, 1);
  EXPECT_EQ(seen[3].epoch, 2);
  EXPECT_EQ(seen[8].epoch, 3);
  EXPECT_EQ(seen[0].step, 1u);
  EXPECT_EQ(seen[0].steps, 9u);
  EXPECT_FLOAT_EQ(seen[0].rate, 0.1f);
  EXPECT_FLOAT_EQ(seen[6].rate, 0.5f);
  EXPECT_GT(seen[0].loss, 0);
  EXPECT_GT(seen[0].examples_per_second, 0);
  EXPECT_GT(seen[0].seconds_left, 0);
  EXPECT_EQ(seen[9].step, 9u);
  EXPECT_EQ(seen[9].seconds_left, 0);

  options.progress = [&](const TrainProgress& now) { return now.step < 4; };
  Network other = linear_network();
  const TrainResult result = train(other, linear_data(10), options);
  EXPECT_EQ(result.steps, 4u);
  EXPECT_TRUE(result.stopped_early);
  EXPECT_EQ(result.epoch_loss.size(), 1u);
}

TEST(Train, ALossThatIsNotFiniteSkipsTheRestOfItsEpoch) {
  Network network = linear_network();
  Dataset data = linear_data(12);
  data.y[8] = std::numeric_limits<float>::infinity();  // example 4: the third batch of two
  const TrainResult result =
      train(network, data, {.epochs = 2, .batch = 2, .schedule = {.rate = 0.1f}, .shuffle = false});
  EXPECT_EQ(result.steps, 12u);
  EXPECT_EQ(result.skipped_steps, 8u);  // 4 of 6 in each epoch
  Network only = linear_network();
  Dataset good{Tensor<float>({4, 3}), Tensor<float>({4, 2})};
  std::copy_n(&data.x[0], 12, &good.x[0]);
  std::copy_n(&data.y[0], 8, &good.y[0]);
  const TrainResult same = train(only, good, {.epochs = 2, .batch = 2, .schedule = {.rate = 0.1f}, .shuffle = false});
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(network.layers()[0].weights->master()[i], only.layers()[0].weights->master()[i]);
  }
  EXPECT_NEAR(result.epoch_loss[0], same.epoch_loss[0] * 2 / 6, 1e-12);  // skipped batches count 0
}

TEST(Train, AGradientThatIsNotFiniteSkipsItsUpdate) {
  // The loss is finite, but x · grad overflows.
  Network network(layer_list(dense(1, 1)), 1);
  network.layers()[0].weights->set_master(std::vector<float>{1e-30f});
  const Dataset data{Tensor<float>({2, 1}, {3e38f, 1}), Tensor<float>({2, 1}, {-3e10f, 0})};
  const TrainResult result =
      train(network, data, {.epochs = 1, .batch = 1, .schedule = {.rate = 0.1f}, .shuffle = false});
  EXPECT_EQ(result.skipped_steps, 1u);
  EXPECT_EQ(result.steps, 2u);
  EXPECT_TRUE(std::isfinite(network.layers()[0].weights->master()[0]));
}

TEST(Train, StopsWhenValidationNoLongerGains) {
  Network network = linear_network();
  TrainOptions options{.epochs = 500, .batch = 8, .schedule = {.rate = 0.3f}, .validation_share = 0.25, .patience = 3};
  const TrainResult result = train(network, linear_data(64), options);
  EXPECT_TRUE(result.stopped_early);
  ASSERT_LT(result.validation_loss.size(), 500u);
  ASSERT_GT(result.validation_loss.size(), 4u);
  EXPECT_EQ(result.validation_loss.size(), result.epoch_loss.size());
  const auto best = std::ranges::min_element(result.validation_loss);
  EXPECT_EQ(result.validation_loss.end() - best, 4);  // the best one, and three without a gain
}

/// Training data pull the weights one way, so that validation is best early and worse later.
struct Misleading {
  Dataset data{Tensor<float>({4, 1}, {1, 1, 1, 1}), Tensor<float>({4, 1})};
  TrainOptions options{.epochs = 40, .batch = 3, .schedule = {.rate = 0.05f}, .validation_share = 0.25};
  Misleading() {
    // The one example for validation has the target 0.3; the others pull towards 1.
    const TrainResult probe = [&] {
      Network network = start();
      TrainOptions one = options;
      one.epochs = 1;
      one.schedule.rate = 0;
      for (std::size_t i = 0; i < 4; ++i) data.y[i] = static_cast<float>(i + 1);
      return train(network, data, one);
    }();
    const auto judged = static_cast<std::size_t>(std::lround(std::sqrt(probe.validation_loss[0]))) - 1;
    for (std::size_t i = 0; i < 4; ++i) data.y[i] = i == judged ? 0.3f : 1;
  }
  static Network start() {
    Network network(layer_list(dense(1, 1)), 1);
    network.layers()[0].weights->set_master(std::vector<float>{0});
    return network;
  }
};

TEST(Train, StoppingEarlyLeavesTheWeightsOfTheBestEpoch) {
  const Misleading misleading;
  TrainOptions options = misleading.options;
  options.patience = 4;
  std::vector<float> weights;  // of the last step of each epoch
  Network network = Misleading::start();
  options.progress = [&](const TrainProgress&) {
    weights.push_back(network.layers()[0].weights->master()[0]);
    return true;
  };
  std::vector<float> checkpointed;
  options.checkpoint = [&](const TrainState&) { checkpointed.push_back(network.layers()[0].weights->master()[0]); };
  const TrainResult result = train(network, misleading.data, options);
  const auto best =
      static_cast<std::size_t>(std::ranges::min_element(result.validation_loss) - result.validation_loss.begin());
  ASSERT_TRUE(result.stopped_early);
  ASSERT_GT(best, 0u);
  EXPECT_EQ(result.best_epoch, static_cast<int>(best) + 1);
  EXPECT_TRUE(result.has_best_weights);
  EXPECT_EQ(network.layers()[0].weights->master()[0], weights[best]);
  EXPECT_EQ(checkpointed, std::vector<float>{weights[best + 4]});  // what going on needs

  // Without patience the last ones stay, and the best epoch is reported all the same.
  Network whole = Misleading::start();
  const TrainResult all = train(whole, misleading.data, misleading.options);
  EXPECT_EQ(all.best_epoch, result.best_epoch);
  EXPECT_FALSE(all.has_best_weights);
  EXPECT_GT(whole.layers()[0].weights->master()[0], weights[best + 4]);
}

TEST(Train, TheBestWeightsSurviveABreak) {
  const Misleading misleading;
  TrainOptions options = misleading.options;
  options.patience = 4;
  Network whole = Misleading::start();
  const TrainResult wanted = train(whole, misleading.data, options);
  TrainState state;
  Network network = Misleading::start();
  TrainOptions first = options;
  const auto stop = static_cast<std::uint64_t>(wanted.best_epoch) + 2;
  first.progress = [&](const TrainProgress& now) { return now.step < stop; };
  first.checkpoint = [&](const TrainState& now) { state = now; };
  EXPECT_FALSE(train(network, misleading.data, first).has_best_weights);
  EXPECT_NE(network.layers()[0].weights->master()[0], whole.layers()[0].weights->master()[0]);
  const TrainResult result = train(network, misleading.data, options, &state);
  EXPECT_EQ(result.best_epoch, wanted.best_epoch);
  EXPECT_EQ(network.layers()[0].weights->master()[0], whole.layers()[0].weights->master()[0]);
}

TEST(Train, SaysThatItHasDiverged) {
  // Each step multiplies the distance to the target by about -2·rate.
  Network network = linear_network();
  std::vector<std::uint64_t> checkpoints;
  TrainOptions options{.epochs = 500, .batch = 8, .schedule = {.rate = 1e4f}, .checkpoint_steps = 1};
  options.checkpoint = [&](const TrainState& state) {
    checkpoints.push_back(state.steps);
    EXPECT_TRUE(std::isfinite(network.layers()[0].weights->master()[0]));
  };
  try {
    train(network, linear_data(64), options);
    FAIL() << "nothing was said";
  } catch (const DivergedError& error) {
    EXPECT_EQ(error.kind(), ErrorKind::diverged);
    EXPECT_NE(std::string(error.what()).find("not finite after"), std::string::npos) << error.what();
  }
  EXPECT_LT(checkpoints.size(), 100u);
}

TEST(Train, AnEpochWithoutAnUpdateIsTheEnd) {
  Network network = linear_network();
  Dataset data = linear_data(4);
  data.y[0] = std::numeric_limits<float>::infinity();
  EXPECT_THROW(train(network, data, {.epochs = 3, .batch = 4}), DivergedError);
}

TEST(Train, ChecksPointsWhereItIsAsked) {
  Network network = linear_network();
  std::vector<std::uint64_t> steps;
  TrainOptions options{.epochs = 4, .batch = 4, .optimizer = {.kind = OptimizerKind::adam}, .checkpoint_steps = 5};
  options.checkpoint = [&](const TrainState& state) {
    steps.push_back(state.steps);
    EXPECT_EQ(state.optimizer_steps, state.steps);
    EXPECT_EQ(state.moments.size(), 2u);
  };
  train(network, linear_data(10), options);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{5, 10, 12}));  // and at the end
}

TEST(Train, AMaskGoesWithItsExamples) {
  // Targets of masked heads are wrong; they must not be learned, whatever the order of the examples.
  constexpr std::size_t kExamples = 40;
  Dataset data{Tensor<float>({kExamples, 2}), Tensor<float>({kExamples, 4})};
  Loss loss{.kind = LossKind::multi_head_softmax_ce, .heads = {2, 2}};
  loss.mask.assign(kExamples * 2, 1);
  for (std::size_t i = 0; i < kExamples; ++i) {
    const std::size_t side = i % 2;
    data.x[i * 2 + side] = 1;
    const bool lies = i % 5 < 3;
    data.y[i * 4 + (lies ? 1 - side : side)] = 1;
    data.y[i * 4 + 2 + side] = 1;
    if (lies) loss.mask[i * 2] = 0;
  }
  Network network(layer_list(dense(2, 4)), 1);
  train(network, data, {.epochs = 50, .batch = 7, .loss = loss, .schedule = {.rate = 1}});
  const Tensor<float>& output = network.forward(Tensor<float>({1, 2}, {1, 0}));
  EXPECT_GT(output[0], output[1] + 1);
  EXPECT_GT(output[2], output[3] + 1);
}

TEST(Train, RefusesWhatMakesNoSense) {
  Network network = linear_network();
  const Dataset data = linear_data(10);
  EXPECT_THROW(train(network, data, {.epochs = -1}), UsageError);
  EXPECT_THROW(train(network, data, {.batch = 0}), UsageError);
  EXPECT_THROW(train(network, data, {.validation_share = 1}), UsageError);
  EXPECT_THROW(train(network, data, {.patience = 2}), UsageError);
  EXPECT_THROW(train(network, {}, {}), UsageError);
  EXPECT_THROW(train(network, {Tensor<float>({10, 3}), Tensor<float>({9, 2})}, {}), ShapeError);
  EXPECT_THROW(train(network, {Tensor<float>({10, 3}), Tensor<float>({10, 3})}, {}), ShapeError);
  Loss loss;
  loss.mask = {1, 1, 1};
  EXPECT_THROW(train(network, data, {.loss = loss}), ShapeError);
  EXPECT_EQ(train(network, data, {.epochs = 0}).steps, 0u);
}

TEST(Accuracy, CountsRowsWhoseLargestOutputIsTheTarget) {
  Network network(layer_list(dense(2, 2)), 1);
  network.layers()[0].weights->set_master(std::vector<float>{1, 0, 0, 1});
  const Tensor<float> x({4, 2}, {1, 0, 0, 1, 2, 1, 0, 3});
  EXPECT_EQ(accuracy(network, {x, Tensor<float>({4}, {0, 1, 0, 0})}), 0.75);
  EXPECT_EQ(accuracy(network, {x, Tensor<float>({4}, {0, 1, -1, 0})}, 3), 2.0 / 3);
  EXPECT_EQ(accuracy(network, {x, Tensor<float>({4, 2}, {1, 0, 0, 1, 0, 1, 1, 0})}, 1), 0.5);
  EXPECT_THROW(accuracy(network, {x, Tensor<float>({4, 3})}), ShapeError);
  EXPECT_THROW(accuracy(network, {x, Tensor<float>({4})}, 0), UsageError);
}

}  // namespace
}  // namespace imago
