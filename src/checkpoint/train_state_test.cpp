#include <gtest/gtest.h>

#include <optional>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/train.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

/// Several types; scales that are derived, fixed, learned (int4, by the options below) and one per row.
Network mixed_network() {
  std::vector<Layer> layers = layer_list(dense(6, 16, Activation::silu), with_dtype(dense(16, 16), DType::int8),
                                         with_dtype(dense(16, 16), DType::int4), with_dtype(dense(16, 8), DType::fp4));
  layers[3].config.granularity = Granularity::row;
  layers.push_back(sequential(layer_list(with_dtype(dense(8, 8), DType::float16), dense(8, 2))));
  Network network(std::move(layers), 3);
  network.layers()[3].weights->set_loaded(network.layers()[3].config.scheme(), std::vector<std::byte>(64),
                                          std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  network.layers()[3].weights->randomize(4, 0.3f);
  return network;
}

Dataset some_data() {
  WeightStore store(40 * 8);
  store.randomize(5, 1);
  const std::span<const float> values = store.master();
  return {Tensor<float>({40, 6}, {values.begin(), values.begin() + 240}),
          Tensor<float>({40, 2}, {values.begin() + 240, values.end()})};
}

TrainOptions some_options() {
  TrainOptions options{.epochs = 5, .batch = 10, .seed = 0xFEDCBA9876543210u, .validation_share = 0.25};
  options.optimizer = {.kind = OptimizerKind::adam, .learn_scales = true};
  options.patience = 3;
  return options;
}

TEST(TrainState, LayersInBlocksKeepAMaster) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "state.safetensors";
  const auto made = [] {
    Network network(layer_list(dense(6, 32, Activation::tanh), dense(32, 32, Activation::tanh), dense(32, 2)), 3);
    network.layers()[1].config.dtype = BlockFormat::q4_0;
    return network;
  };
  TrainOptions options{.epochs = 40, .batch = 10, .schedule = {.rate = 0.01f}};
  options.optimizer.kind = OptimizerKind::adam;
  Network whole = made();
  const TrainResult result = train(whole, some_data(), options);
  EXPECT_LT(result.final_loss, 0.9 * result.epoch_loss.front()) << "targets are noise: little can be learned";
  const WeightStore& weights = *whole.layers()[1].weights;
  const std::vector<float> active = weights.active(BlockFormat::q4_0);
  EXPECT_FALSE(std::ranges::equal(weights.master(), active)) << "the master is finer than its blocks";

  Network first = made();
  options.progress = [&](const TrainProgress& now) { return now.step < 70; };
  options.checkpoint = [&](const TrainState& state) { save_train_state(path, first, state); };
  train(first, some_data(), options);
  Network second = made();
  const TrainState state = load_train_state(path, second);
  EXPECT_EQ(second.layers()[1].config.dtype, BlockFormat::q4_0);
  options.progress = nullptr;
  options.checkpoint = nullptr;
  train(second, some_data(), options, &state);
  EXPECT_EQ(serialize_network(second), serialize_network(whole));
}

TEST(TrainState, GoingOnThroughAFileEqualsNeverHavingStopped) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "state.safetensors";
  Network whole = mixed_network();
  const TrainResult wanted = train(whole, some_data(), some_options());

  Network first = mixed_network();
  TrainOptions options = some_options();
  options.progress = [&](const TrainProgress& now) { return now.step < 7; };
  std::optional<TrainState> at_the_end;
  options.checkpoint = [&](const TrainState& state) {
    at_the_end = state;
    save_train_state(path, first, state);
  };
  train(first, some_data(), options);
  ASSERT_TRUE(at_the_end);

  Network second = mixed_network();
  const TrainState state = load_train_state(path, second);
  EXPECT_EQ(state.steps, 7u);
  EXPECT_EQ(state.optimizer_steps, 7u);
  EXPECT_EQ(state.seed, 0xFEDCBA9876543210u);
  EXPECT_EQ(state.epoch_loss_sum, at_the_end->epoch_loss_sum);
  EXPECT_EQ(state.best_validation, at_the_end->best_validation);
  EXPECT_EQ(state.epochs_without_gain, at_the_end->epochs_without_gain);
  EXPECT_EQ(state.epoch_loss, at_the_end->epoch_loss);
  ASSERT_FALSE(state.best_weights.empty());
  ASSERT_EQ(state.best_weights.size(), at_the_end->best_weights.size());
  EXPECT_EQ(state.best_weights.back().name, at_the_end->best_weights.back().name);
  EXPECT_EQ(state.best_weights.back().values, at_the_end->best_weights.back().values);
  ASSERT_EQ(state.moments.size(), at_the_end->moments.size());
  for (std::size_t i = 0; i < state.moments.size(); ++i) {
    EXPECT_EQ(state.moments[i].name, at_the_end->moments[i].name);
    EXPECT_EQ(state.moments[i].values, at_the_end->moments[i].values);
  }
  const TrainResult result = train(second, some_data(), some_options(), &state);
  EXPECT_EQ(serialize_network(second), serialize_network(whole));
  EXPECT_EQ(result.epoch_loss, wanted.epoch_loss);
  EXPECT_EQ(result.validation_loss, wanted.validation_loss);
}

/// Rules that wait for each other, one that looks at the history, one that makes its layer another one, and a meta
/// network that draws noise.
Network thinking_network() {
  constexpr int kAlways = 5;  // |max| > -1
  constexpr float kType = 99, kNorm = 90;
  const std::vector<MetaRule> waiting = {{kAlways, -1, kType, 9, 6, true}, {kAlways, -1, kType, 1, 4, true}};
  const std::vector<MetaRule> watching = {{7, 1.05, kType, 14, 0, true}, {7, 0.5, kType, 1, 2, true}};
  const std::vector<MetaRule> becoming = {{kAlways, -1, kNorm, 0, 9, true}};
  Layer noisy = metacognition(dense(8, 8), {});
  noisy.config.meta_source = "stats";
  noisy.config.meta_effect = "noise";
  Layer gumbel = softmax(SoftmaxType::gumbel);
  noisy.meta_network = std::make_unique<Network>(layer_list(dense(6, 6), std::move(gumbel)), 9);
  return Network(layer_list(metacognition(dense(6, 16, Activation::silu), waiting),
                            sequential(layer_list(metacognition(dense(16, 8), watching))),
                            metacognition(dense(8, 8), becoming), std::move(noisy), dense(8, 2)),
                 3);
}

TEST(TrainState, RulesOfMetacognitionGoOnWhereTheyWere) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "state.safetensors";
  Network whole = thinking_network();
  const TrainResult wanted = train(whole, some_data(), some_options());
  ASSERT_EQ(whole.layers()[2].observed->config.type, LayerType::rms_norm);
  for (const std::uint64_t stop_at : {1u, 3u, 5u, 6u, 7u, 8u, 11u}) {
    Network first = thinking_network();
    TrainOptions options = some_options();
    options.progress = [&](const TrainProgress& now) { return now.step < stop_at; };
    options.checkpoint = [&](const TrainState& state) { save_train_state(path, first, state); };
    train(first, some_data(), options);
    Network second = thinking_network();
    const TrainState state = load_train_state(path, second);
    const TrainResult result = train(second, some_data(), some_options(), &state);
    EXPECT_EQ(result.epoch_loss, wanted.epoch_loss) << "stopped at " << stop_at;
    EXPECT_EQ(result.validation_loss, wanted.validation_loss) << "stopped at " << stop_at;
    EXPECT_EQ(serialize_network(second), serialize_network(whole)) << "stopped at " << stop_at;
    EXPECT_EQ(second.memory(), whole.memory());
  }
}

TEST(TrainState, AMemoryThatDoesNotFitIsRefused) {
  Network network = thinking_network();
  const std::vector<std::uint64_t> memory = network.memory();
  std::vector<std::uint64_t> longer = memory;
  longer.push_back(0);
  EXPECT_THROW(network.restore_memory(longer), UsageError);
  EXPECT_THROW(network.restore_memory(std::span(memory).first(memory.size() - 1)), UsageError);
  std::vector<std::uint64_t> huge = memory;
  huge[0] = ~std::uint64_t{0};
  EXPECT_THROW(network.restore_memory(huge), UsageError);
  EXPECT_EQ(network.memory(), memory);
  network.restore_memory(memory);
  EXPECT_TRUE(mixed_network().memory().empty());
}

TEST(TrainState, ATypeThatLayersHadIsTheirsAgain) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "state.safetensors";
  Network network = mixed_network();
  morph_network(network, DType::ternary);
  save_train_state(path, network, {});
  Network other = mixed_network();
  load_train_state(path, other);
  EXPECT_EQ(other.layers()[0].config.dtype, DType::ternary);
  EXPECT_FALSE(other.layers()[0].weights->morph(DType::ternary)->has_explicit_scale());
}

TEST(TrainState, OtherNetworksAndOtherFilesAreRefused) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "state.safetensors";
  Network network = mixed_network();
  save_train_state(path, network, {});
  const auto message = [&](Network other, const std::string& file) -> std::string {
    const std::string before = serialize_network(other);
    try {
      load_train_state(file, other);
    } catch (const FormatError& error) {
      EXPECT_EQ(serialize_network(other), before);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(Network(layer_list(dense(6, 17))), path).find("96 weights of layers.0, not 102"),
            std::string::npos);
  EXPECT_NE(message(Network(layer_list(dense(6, 16))), path).find("6 layers, not 1"), std::string::npos);
  const std::string weights = folder.path() / "weights.safetensors";
  save_network(network, weights);
  EXPECT_NE(message(mixed_network(), weights).find("not a training state"), std::string::npos);
}

}  // namespace
}  // namespace imago
