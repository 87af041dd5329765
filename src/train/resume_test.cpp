// The same seed gives the same bits, and going on equals never having stopped.

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/parallel.h"
#include "imago/train.h"

namespace imago {
namespace {

using Masters = std::vector<std::vector<float>>;

Masters masters(Network& network) {
  Masters all;
  for (const Layer& layer : network.layers()) {
    if (layer.weights) all.emplace_back(layer.weights->master().begin(), layer.weights->master().end());
  }
  return all;
}

/// Several types, and a layer that draws random numbers while it runs.
Network mixed_network() {
  Layer gumbel = softmax(SoftmaxType::gumbel);
  gumbel.config.gumbel_noise = true;
  return Network(layer_list(dense(6, 32, Activation::silu), with_dtype(dense(32, 32, Activation::tanh), DType::int8),
                            std::move(gumbel), with_dtype(dense(32, 16, Activation::relu), DType::fp4),
                            with_dtype(dense(16, 3), DType::ternary)),
                 3);
}

Dataset some_data(std::size_t examples) {
  WeightStore store(examples * 6);
  store.randomize(5, 1);
  Dataset data{Tensor<float>({examples, 6}, {store.master().begin(), store.master().end()}), Tensor<float>({examples})};
  for (std::size_t i = 0; i < examples; ++i) data.y[i] = data.x[i * 6] > 0 ? 2 : data.x[i * 6 + 1] > 0 ? 1 : 0;
  return data;
}

TrainOptions some_options() {
  TrainOptions options{.epochs = 4, .batch = 16};  // 72 of 90 examples: 5 steps an epoch, the last one with 8 examples
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer = {.kind = OptimizerKind::adamw, .weight_decay = 0.01f, .clip_norm = 1};
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.02f, .warmup_steps = 3};
  options.validation_share = 0.2;
  options.patience = 100;
  options.seed = 11;
  return options;
}

TEST(Resume, EqualsNeverHavingStopped) {
  const Dataset data = some_data(90);
  Network whole = mixed_network();
  const TrainResult wanted = train(whole, data, some_options());
  ASSERT_EQ(wanted.steps, 20u);
  ASSERT_EQ(wanted.validation_loss.size(), 4u);

  for (const std::uint64_t stop_at : {1u, 5u, 10u, 13u, 19u}) {
    Network network = mixed_network();
    std::optional<TrainState> saved;
    TrainOptions options = some_options();
    options.checkpoint_steps = stop_at;
    options.checkpoint = [&](const TrainState& state) {
      if (!saved) saved = state;
    };
    options.progress = [&](const TrainProgress& now) { return now.step < stop_at; };
    train(network, data, options);
    ASSERT_TRUE(saved && saved->steps == stop_at);

    Network second = mixed_network();
    for (std::size_t i = 0; i < network.layers().size(); ++i) {
      const Layer& layer = network.layers()[i];
      if (!layer.weights) continue;
      second.layers()[i].weights->set_master(layer.weights->master());
      const std::optional<float> scale = layer.weights->explicit_scale(layer.config.dtype.dtype());
      if (scale) second.layers()[i].weights->set_scale(layer.config.dtype.dtype(), *scale);
    }
    TrainOptions rest = some_options();
    rest.seed = 999;  // that of the state counts
    const TrainResult result = train(second, data, rest, &*saved);
    EXPECT_EQ(masters(second), masters(whole)) << "stopped at " << stop_at;
    EXPECT_EQ(result.epoch_loss, wanted.epoch_loss) << "stopped at " << stop_at;
    EXPECT_EQ(result.validation_loss, wanted.validation_loss) << "stopped at " << stop_at;
    EXPECT_EQ(result.steps, wanted.steps);
  }
}

TEST(Resume, TheSameSeedAndThreadsGiveTheSameBits) {
  const int before = pool_threads();
  const Dataset data = some_data(90);
  for (const int threads : {1, 2}) {
    set_pool_threads(threads);
    Network one = mixed_network(), other = mixed_network(), different = mixed_network();
    train(one, data, some_options());
    train(other, data, some_options());
    EXPECT_EQ(masters(one), masters(other)) << threads << " threads";
    TrainOptions options = some_options();
    options.seed = 12;
    train(different, data, options);
    EXPECT_NE(masters(one), masters(different));
  }
  set_pool_threads(before);
}

TEST(Resume, AStateAtTheEndHasNothingLeftToDo) {
  const Dataset data = some_data(90);
  Network network = mixed_network();
  TrainState last;
  TrainOptions options = some_options();
  options.checkpoint_steps = 20;
  options.checkpoint = [&](const TrainState& state) { last = state; };
  train(network, data, options);
  const Masters before = masters(network);
  const TrainResult result = train(network, data, some_options(), &last);
  EXPECT_EQ(masters(network), before);
  EXPECT_EQ(result.epoch_loss.size(), 4u);
  TrainOptions longer = some_options();
  longer.epochs = 5;
  longer.patience = 0;  // or the weights of an earlier epoch might be the best
  EXPECT_EQ(train(network, data, longer, &last).steps, 25u);
  EXPECT_NE(masters(network), before);
}

}  // namespace
}  // namespace imago
