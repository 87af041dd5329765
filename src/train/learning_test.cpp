// Small problems that training must solve, in float32 and through the rounding of narrow types.

#include <gtest/gtest.h>

#include "imago/train.h"
#include "testing/dense_stack.h"
#include "testing/spirals.h"

namespace imago {
namespace {

using testing::copy_in;
using testing::spirals;

Network spiral_network() {
  constexpr int kWidths[] = {3, 32, 32, 2};
  return testing::dense_stack(kWidths, Activation::silu, 7);
}

TrainOptions spiral_options() {
  TrainOptions options{.epochs = 150, .batch = 32};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule = {.kind = ScheduleKind::cosine, .rate = 0.02f, .warmup_steps = 20};
  options.seed = 1;
  return options;
}

TEST(Learning, TwoSpiralsAndTheirRounding) {
  const Dataset data = spirals(800, 1), unseen = spirals(800, 2);
  Network network = spiral_network();
  train(network, data, spiral_options());
  const double full = accuracy(network, unseen);
  EXPECT_GE(full, 0.97);

  Network rounded = copy_in(network, DType::int4);
  const double afterwards = accuracy(rounded, unseen);

  train(rounded, data, spiral_options());  // goes on from there, through the rounding
  const double aware = accuracy(rounded, unseen);
  RecordProperty("float32", std::to_string(full));
  RecordProperty("int4_rounded_afterwards", std::to_string(afterwards));
  RecordProperty("int4_trained", std::to_string(aware));
  EXPECT_GE(aware, full - 0.01);
  EXPECT_GT(aware, afterwards);
}

TEST(Learning, UnsignedTypesLearnAsSignedOnesDo) {
  const Dataset data = spirals(800, 1), unseen = spirals(800, 2);
  Network network = spiral_network();
  train(network, data, spiral_options());
  TrainOptions options = spiral_options();
  options.epochs = 30;
  const std::pair<DType, DType> kPairs[] = {{DType::uint8, DType::int8}, {DType::uint4, DType::int4}};
  for (const auto& [without_sign, with_sign] : kPairs) {
    const auto figures = [&](DType dtype) {
      Network rounded = copy_in(network, dtype);
      const double before = accuracy(rounded, unseen);
      train(rounded, data, options);
      return std::pair(before, accuracy(rounded, unseen));
    };
    const auto [rounded, trained] = figures(without_sign);
    const auto [signed_rounded, signed_trained] = figures(with_sign);
    EXPECT_GE(rounded, signed_rounded - 0.05) << name(without_sign);
    EXPECT_GE(trained, signed_trained - 0.02) << name(without_sign);
  }
}

TEST(Learning, EveryTypeLearnsThroughItsRounding) {
  const Dataset data = spirals(400, 1);
  TrainOptions options = spiral_options();
  options.epochs = 10;
  options.loss.kind = LossKind::mse;
  Dataset regression{data.x, Tensor<float>({400, 1})};
  for (std::size_t i = 0; i < 400; ++i) regression.y[i] = data.x[i * 3] * 2 + 1;  // what positive weights can do
  for (int id = 0; id < kDTypeCount; ++id) {
    const DType dtype = static_cast<DType>(id);
    Network network(layer_list(with_dtype(dense(3, 16, Activation::silu), dtype), with_dtype(dense(16, 1), dtype)), 1);
    const TrainResult result = train(network, regression, options);
    EXPECT_EQ(result.skipped_steps, 0u) << info(dtype).name;
    EXPECT_LT(result.epoch_loss.back(), result.epoch_loss.front() * 0.7) << info(dtype).name;
  }
}

/// Mean final loss over three seeds of a trained float32 network that goes on in `dtype`.
template <class Prepare>
double loss_in(Network& trained, DType dtype, bool learn_scales, Prepare&& prepare) {
  const Dataset data = spirals(800, 1);
  TrainOptions options = spiral_options();
  options.epochs = 30;
  options.optimizer.learn_scales = learn_scales;
  double sum = 0;
  for (options.seed = 1; options.seed <= 3; ++options.seed) {
    Network network = copy_in(trained, dtype);
    for (Layer& layer : network.layers()) prepare(*layer.weights);
    sum += train(network, data, options).final_loss;
  }
  return sum / 3;
}

TEST(Learning, LearnedScalesOfTwoBitsBeatThoseThatAreDerivedOrFixed) {
  Network trained = spiral_network();
  train(trained, spirals(800, 1), spiral_options());
  for (const DType dtype : {DType::int2, DType::ternary}) {
    const auto leave = [](WeightStore&) {};
    EXPECT_LT(loss_in(trained, dtype, true, leave), 0.5 * loss_in(trained, dtype, false, leave)) << info(dtype).name;
    // The same start for both, a poor one: what is gained then is gained by learning.
    const auto fix = [&](WeightStore& store) { store.set_scale(dtype, store.morph(dtype)->scale()); };
    EXPECT_LT(loss_in(trained, dtype, true, fix), 0.75 * loss_in(trained, dtype, false, fix)) << info(dtype).name;
  }
}

TEST(Learning, TypesUnderThreeBitsLearnTheirScalesUnlessToldNotTo) {
  const Dataset data = spirals(200, 1);
  const auto loss = [&](DType dtype, std::optional<bool> learn_scales) {
    Network network = copy_in(spiral_network(), dtype);
    TrainOptions options = spiral_options();
    options.epochs = 5;
    options.optimizer.learn_scales = learn_scales;
    return train(network, data, options).final_loss;
  };
  for (const DType dtype : {DType::binary, DType::ternary, DType::int2, DType::int4, DType::int8}) {
    const bool narrow = info(dtype).bits < 3;
    EXPECT_EQ(loss(dtype, std::nullopt), loss(dtype, narrow)) << info(dtype).name;
    EXPECT_NE(loss(dtype, std::nullopt), loss(dtype, !narrow)) << info(dtype).name;
  }
}

}  // namespace
}  // namespace imago
