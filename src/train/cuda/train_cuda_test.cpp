// Training on a GPU against the host: kernels, gradients of every layer that is trained there, whole runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/train.h"
#include "kernels/ops.h"
#include "layers/layer_functions.h"
#include "testing/every_layer.h"
#include "testing/gpu.h"
#include "train/cuda/gpu_stepper.h"
#include "train/cuda/kernels.h"
#include "train/update.h"

namespace imago {
namespace {

using testing::layer_case;
using testing::random_tensor;
using testing::randomize_layer;

void expect_close(std::span<const float> got, std::span<const float> wanted, double tolerance,
                  const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double largest = 1e-4, worst = 0;
  std::size_t wrong = 0, at = 0;
  for (const float value : wanted) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    if (!(error <= tolerance * largest)) ++wrong;
    if (!(error <= worst)) {
      worst = error;
      at = i;
    }
  }
  EXPECT_EQ(wrong, 0u) << what << ": " << wrong << " of " << wanted.size() << " wrong; entry " << at << " is "
                       << got[at] << ", not " << wanted[at];
}

std::vector<std::size_t> all_of(const Dataset& data) {
  std::vector<std::size_t> examples(data.size());
  std::iota(examples.begin(), examples.end(), std::size_t{0});
  return examples;
}

class TrainCudaTest : public testing::GpuTest {
 protected:
  /// Gradients of all weights under a mean squared error with random targets.
  void check_gradients(Network& network, const Tensor<float>& x, const std::string& what, double tolerance = 5e-5) {
    const Shape shape = network.forward(x).shape();
    const Dataset data{x, random_tensor(shape, 17)};
    ASSERT_EQ(shape[0], x.shape()[0]) << what;  // examples
    Tensor<float> slope;
    network.clear_gradients();
    const double wanted_loss = evaluate_loss({}, network.forward_training(x), data.y, &slope);
    network.backward(slope);
    try {
      cuda::GpuStepper stepper(network, data, {}, device());
      EXPECT_NEAR(stepper.evaluate(all_of(data), {}), wanted_loss, 1e-5 * std::abs(wanted_loss)) << what;
      const std::vector<std::vector<float>> got = stepper.gradients(all_of(data), {});
      std::size_t index = 0;
      for (std::size_t i = 0; i < network.layers().size(); ++i) {
        compare(network.layers()[i], network.gradients()[i], got, index, what, tolerance);
      }
      EXPECT_EQ(index, got.size()) << what;
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": " << error.what();
    }
  }

  static void compare(const Layer& layer, const LayerGradient& wanted, const std::vector<std::vector<float>>& got,
                      std::size_t& index, const std::string& what, double tolerance) {
    if (layer.weights) {
      ASSERT_LT(index, got.size()) << what;
      expect_close(got[index], wanted.weights, tolerance, what + ", array " + std::to_string(index));
      ++index;
    }
    std::size_t child = 0;
    layers::for_each_child(
        layer, [&](const Layer& inner) { compare(inner, wanted.children[child++], got, index, what, tolerance); });
  }

  void check_layer(std::vector<Layer> layers, const Tensor<float>& x, const std::string& what) {
    Network network(std::move(layers));
    for (Layer& layer : network.layers()) randomize_layer(layer, 5);
    check_gradients(network, x, what);
  }

  static bool is_trained(LayerType type) {
    return type != LayerType::rnn && type != LayerType::lstm && type != LayerType::kmeans &&
           type != LayerType::metacognition;
  }
};

TEST_F(TrainCudaTest, UpdatesGiveTheBitsOfTheHost) {
  constexpr std::size_t kCount = 10007;
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adam, OptimizerKind::adamw}) {
    for (const bool not_negative : {false, true}) {
      OptimizerOptions options{.kind = kind, .clip_element = 0.7f, .clip_norm = 5};
      if (kind == OptimizerKind::adamw) options.weight_decay = 0.1f;
      const Tensor<float> start = random_tensor({kCount}, 1), gradient = random_tensor({kCount}, 2);
      std::vector<float> weights(start.values().begin(), start.values().end()), moments[2];
      for (int i = 0; i < moment_count(kind); ++i) moments[i].assign(kCount, 0.01f);
      cuda::Stream stream(device());
      cuda::Array<float> w(*device(), kCount), g(*device(), kCount), m1(*device(), kCount), m2(*device(), kCount);
      cuda::Array<cuda::StepFigures> figures(*device(), 1);
      cuda::Array<double> partials(*device(), cuda::square_partials(kCount));
      stream.copy_in(std::as_bytes(start.values()), w.data());
      stream.copy_in(std::as_bytes(gradient.values()), g.data());
      const std::vector<float> first(kCount, 0.01f);
      stream.copy_in(std::as_bytes(std::span(first)), m1.data());
      stream.copy_in(std::as_bytes(std::span(first)), m2.data());
      cuda::clipped_squares(g.data(), kCount, options.clip_element, partials.data(), stream);
      cuda::sum_values(partials.data(), partials.size(), 1, &figures.data()->squares, stream);
      const UpdateRule rule(options, 3, 0.1);
      kernels::UpdateArgs args = rule.arguments(not_negative);
      args.weights = w.data();
      args.gradient = g.data();
      args.moment1 = m1.data();
      args.moment2 = m2.data();
      args.count = kCount;
      cuda::update(args, figures.data(), options.clip_norm, stream);
      std::vector<float> got(kCount);
      stream.copy_out(w.data(), std::as_writable_bytes(std::span(got)));
      cuda::StepFigures found{};
      stream.copy_out(figures.data(), std::as_writable_bytes(std::span(&found, 1)));
      stream.wait();

      const double expected = clipped_square_sum(gradient.values(), options.clip_element);
      EXPECT_NEAR(found.squares, expected, 1e-10 * expected);
      const double norm = std::sqrt(expected);
      ASSERT_GT(norm, 5);
      UpdateRule(options, 3, 0.1, 5 / norm).apply(weights, gradient.values(), moments[0], moments[1], not_negative);
      std::size_t differing = 0;
      for (std::size_t i = 0; i < kCount; ++i) differing += got[i] != weights[i] ? 1 : 0;
      // The factor of the norm may round to a neighbour, since sums run in another order.
      EXPECT_LE(differing, 0u) << name(kind) << (not_negative ? ", not negative" : "");
    }
  }
}

TEST_F(TrainCudaTest, RoundsMastersAsTheStoreDoes) {
  struct Form {
    Granularity granularity;
    int group;
  };
  for (int id = 0; id < kDTypeCount; ++id) {
    for (const Form form : {Form{Granularity::tensor, 0}, Form{Granularity::row, 0}, Form{Granularity::group, 32}}) {
      const DType dtype = static_cast<DType>(id);
      if (dtype == DType::float32 || (!is_scaled(dtype) && form.granularity != Granularity::tensor)) continue;
      constexpr std::size_t kRows = 300, kCols = 96;
      WeightStore store(kRows, kCols);
      store.randomize(7, 0.3f);
      const std::span<float> master = store.edit_master();
      for (std::size_t i = 0; i < 64; ++i) master[i * 5] = 0.05f * static_cast<float>(i % 13);  // ties, zeros
      Scheme scheme(dtype);
      scheme.granularity = form.granularity;
      scheme.group = form.group;
      const std::vector<float> wanted = store.active(scheme);
      const std::size_t group = form.granularity == Granularity::tensor ? store.count()
                                : form.granularity == Granularity::row  ? kCols
                                                                        : 32;
      cuda::Stream stream(device());
      cuda::Array<float> from(*device(), store.count()), to(*device(), store.count());
      cuda::Array<double> partials(*device(), cuda::rounding_partials(store.count(), group));
      stream.copy_in(std::as_bytes(store.master()), from.data());
      cuda::round_weights({.master = from.data(),
                           .rounded = to.data(),
                           .count = store.count(),
                           .dtype = dtype,
                           .scale_group = group,
                           .explicit_scale = 0,
                           .explicit_zero = 0,
                           .partials = partials.data()},
                          stream);
      std::vector<float> got(store.count());
      stream.copy_out(to.data(), std::as_writable_bytes(std::span(got)));
      stream.wait();
      std::size_t differing = 0, at = 0;
      for (std::size_t i = 0; i < got.size(); ++i) {
        if (got[i] == wanted[i]) continue;
        if (differing++ == 0) at = i;
      }
      EXPECT_EQ(differing, 0u) << name(dtype) << ", granularity " << static_cast<int>(form.granularity) << ": weight "
                               << at << " = " << store.master()[at] << " became " << got[at] << ", not " << wanted[at];
    }
  }
}

TEST_F(TrainCudaTest, GradientsOfEveryLayerType) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const LayerType type = static_cast<LayerType>(id);
    if (!is_trained(type)) continue;
    testing::LayerCase one = layer_case(type);
    const std::size_t width = one.x.shape().last();
    if (type == LayerType::embedding) {
      check_layer(layer_list(std::move(one.layer), dense(5, 3)), one.x, "Embedding");
      continue;
    }
    // A dense layer in front shows the gradient of the input.
    const int cols = static_cast<int>(width);
    check_layer(layer_list(dense(cols, cols, Activation::tanh), std::move(one.layer)), one.x, std::string(name(type)));
  }
}

TEST_F(TrainCudaTest, GradientsOfLargerLayers) {
  const auto block = [](int width) {
    return layer_list(dense(width, width),
                      sequential(layer_list(rms_norm(width), attention({.width = width, .heads = 8, .kv_heads = 2}))),
                      sequential(layer_list(swiglu(width, 2 * width), residual())), layer_norm(width),
                      dense(width, 50));
  };
  check_layer(block(64), random_tensor({3, 40, 64}, 1), "a decoder block");
  check_layer(
      layer_list(embedding(40, 64), dense(64, 9)),
      [] {
        Tensor<float> ids({4, 300});
        for (std::size_t i = 0; i < ids.size(); ++i)
          ids[i] = static_cast<float>(i * 7919 % 43) - 1;  // some name no row
        return ids;
      }(),
      "Embedding of many ids");
  check_layer(layer_list(dense(256, 300, Activation::gelu), dense(300, 700, Activation::relu), dense(700, 10)),
              random_tensor({600, 256}, 1), "dense layers");
  check_layer(
      layer_list(
          convolution(2, {.channels = 3, .filters = 8, .kernel = 3, .padding = 1, .height = 16}, Activation::relu),
          convolution(2, {.channels = 8, .filters = 16, .kernel = 3, .stride = 2, .padding = 1, .height = 16},
                      Activation::tanh),
          dense(16 * 8 * 8, 10)),
      random_tensor({20, 3, 16, 16}, 1), "convolutions");
  for (const char* mode : {"concat", "add", "avg"}) {
    check_layer(layer_list(dense(7, 7), parallel(mode, layer_list(dense(7, 7), rms_norm(7), swiglu(7, 8)))),
                random_tensor({5, 7}, 1), std::string("Parallel ") + mode);
  }
}

TEST_F(TrainCudaTest, GradientsThroughNormsInsideLayers) {
  Layer heads = attention({.width = 12, .heads = 2, .kv_heads = 1});
  heads.config.q_norm.assign(6, 0.5f);
  heads.config.k_norm = {1, 2, 0.5f, 1, 0.25f, 1};
  heads.config.inner_norm.assign(12, 0.75f);
  Layer gated = swiglu(12, 20);
  gated.config.inner_norm.assign(20, 0.5f);
  gated.config.activation = Activation::relu2;
  check_layer(layer_list(dense(12, 12), std::move(heads), std::move(gated)), random_tensor({2, 9, 12}, 1),
              "inner norms");
}

TEST_F(TrainCudaTest, GradientsThroughActivations) {
  for (const Activation activation : {Activation::relu, Activation::silu, Activation::gelu, Activation::tanh,
                                      Activation::sigmoid, Activation::leaky_relu, Activation::relu2}) {
    check_layer(layer_list(dense(20, 30, activation), dense(30, 8)), random_tensor({16, 20}, 1, 2),
                std::string(name(activation)));
  }
}

TEST_F(TrainCudaTest, LinksShareTheirGradient) {
  Network network(layer_list(dense(6, 6, Activation::tanh),
                             sequential(layer_list(remote_link({0, 0, 0, 0}), dense(6, 6), residual())), dense(6, 2)));
  for (Layer& layer : network.layers()) randomize_layer(layer, 3);
  check_gradients(network, random_tensor({8, 6}, 1), "a remote link");
}

TEST_F(TrainCudaTest, EveryLossEqualsTheHost) {
  const auto check = [&](const Loss& loss, const Tensor<float>& target, bool softmax_last, const std::string& what) {
    std::vector<Layer> layers = layer_list(dense(12, 9));
    if (softmax_last) layers.push_back(softmax());
    Network network(std::move(layers));
    randomize_layer(network.layers()[0], 5);
    const Dataset data{random_tensor({7, 12}, 1), target};
    Tensor<float> slope;
    network.clear_gradients();
    const double wanted = evaluate_loss(loss, network.forward_training(data.x), target, &slope);
    network.backward(slope);
    cuda::GpuStepper stepper(network, data, {}, device());
    EXPECT_NEAR(stepper.evaluate(all_of(data), loss), wanted, 1e-5 * std::abs(wanted)) << what;
    expect_close(stepper.gradients(all_of(data), loss)[0], network.gradients()[0].weights, 3e-5, what);
  };
  Tensor<float> shares = random_tensor({7, 9}, 4);
  for (float& share : shares.values()) share = std::abs(share);
  check({.kind = LossKind::mse}, random_tensor({7, 9}, 2), false, "mse");
  check({.kind = LossKind::cross_entropy}, shares, true, "cross_entropy");
  check({.kind = LossKind::cross_entropy_logits}, Tensor<float>({7}, {0, 8, -1, 3, 3, -1, 1}), false, "classes");
  check({.kind = LossKind::cross_entropy_logits}, shares, false, "shares");
  check({.kind = LossKind::multi_head_softmax_ce, .heads = {2, 4, 3}}, shares, false, "heads");
  check({.kind = LossKind::multi_head_softmax_ce,
         .heads = {2, 4, 3},
         .mask = std::vector<float>{1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1, 0, 1}},
        shares, false, "heads with a mask");
  Network network(layer_list(dense(12, 9)));
  const Dataset wrong{random_tensor({1, 12}, 1), Tensor<float>({1}, {9})};
  cuda::GpuStepper stepper(network, wrong, {}, device());
  EXPECT_THROW(stepper.evaluate(all_of(wrong), {.kind = LossKind::cross_entropy_logits}), UsageError);
}

TEST_F(TrainCudaTest, RunsEqualThoseOfTheHost) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::momentum, OptimizerKind::adam, OptimizerKind::adamw}) {
    for (const DType dtype : {DType::float32, DType::int8, DType::bfloat16}) {
      TrainOptions options{.epochs = 2, .batch = 24, .loss = {.kind = LossKind::cross_entropy_logits}};
      options.optimizer = {.kind = kind, .clip_element = 0.5f, .clip_norm = 2};
      options.schedule.rate = kind == OptimizerKind::sgd ? 0.1f : 0.003f;
      options.validation_share = 0.1;
      const Dataset digits = drawn_digits(400, 3);
      const auto make = [&] {
        return Network(layer_list(with_dtype(dense(65, 48, Activation::tanh), dtype), with_dtype(rms_norm(48), dtype),
                                  with_dtype(dense(48, 10), dtype)),
                       9);
      };
      Network on_host = make(), on_device = make();
      const TrainResult wanted = train(on_host, digits, options);
      options.device = device();
      const TrainResult got = train(on_device, digits, options);
      const std::string what = std::string(name(kind)) + " in " + std::string(name(dtype));
      // Rounding to int8 turns a last bit into a step of the grid now and then.
      const double tolerance = dtype == DType::float32 ? 2e-4 : 2e-2;
      ASSERT_EQ(got.steps, wanted.steps) << what;
      for (std::size_t i = 0; i < wanted.epoch_loss.size(); ++i) {
        EXPECT_NEAR(got.epoch_loss[i], wanted.epoch_loss[i], tolerance * wanted.epoch_loss[i]) << what;
        EXPECT_NEAR(got.validation_loss[i], wanted.validation_loss[i], tolerance * wanted.validation_loss[i]) << what;
      }
      if (dtype != DType::float32) continue;
      for (const std::size_t i : {0u, 1u, 2u}) {
        expect_close(on_device.layers()[i].weights->master(), on_host.layers()[i].weights->master(), 2e-3, what);
      }
    }
  }
}

TEST_F(TrainCudaTest, TheSameSeedGivesTheSameBits) {
  const Dataset digits = drawn_digits(300, 3);
  TrainOptions options{.epochs = 2, .batch = 32, .loss = {.kind = LossKind::cross_entropy_logits}};
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule.rate = 0.003f;
  options.device = device();
  Network a(layer_list(dense(65, 40, Activation::relu), dense(40, 10)), 2),
      b(layer_list(dense(65, 40, Activation::relu), dense(40, 10)), 2);
  train(a, digits, options);
  train(b, digits, options);
  EXPECT_TRUE(std::ranges::equal(a.layers()[0].weights->master(), b.layers()[0].weights->master()));
  EXPECT_TRUE(std::ranges::equal(a.layers()[1].weights->master(), b.layers()[1].weights->master()));
}

TEST_F(TrainCudaTest, GoesOnWhereItStopped) {
  const Dataset digits = drawn_digits(300, 3);
  TrainOptions options{.epochs = 4, .batch = 32, .loss = {.kind = LossKind::cross_entropy_logits}};
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule.rate = 0.003f;
  options.device = device();
  const auto make = [] { return Network(layer_list(dense(65, 40, Activation::relu), dense(40, 10)), 2); };
  Network whole = make(), stopped = make();
  train(whole, digits, options);
  TrainState state;
  TrainOptions half = options;
  half.progress = [](const TrainProgress& p) { return p.step < 17; };
  half.checkpoint = [&](const TrainState& now) { state = now; };
  train(stopped, digits, half);
  ASSERT_EQ(state.moments.size(), 4u);
  train(stopped, digits, options, &state);
  EXPECT_TRUE(std::ranges::equal(whole.layers()[0].weights->master(), stopped.layers()[0].weights->master()));
}

TEST_F(TrainCudaTest, LearnsDigits) {
  const Dataset digits = drawn_digits(4000, 3), unseen = drawn_digits(1000, 4);
  TrainOptions options{.epochs = 12, .batch = 64, .loss = {.kind = LossKind::cross_entropy_logits}};
  options.optimizer.kind = OptimizerKind::adam;
  options.schedule.rate = 0.003f;
  options.device = device();
  for (const DType dtype : {DType::float32, DType::int4}) {
    Network network(layer_list(with_dtype(dense(65, 128, Activation::relu), dtype), with_dtype(dense(128, 10), dtype)),
                    2);
    const TrainResult result = train(network, digits, options);
    network.run_on(device());
    const double right = accuracy(network, unseen);
    std::printf("digits in %s: %.1f %% right, %.1f steps/s\n", std::string(name(dtype)).c_str(), 100 * right,
                static_cast<double>(result.steps) / result.seconds);
    EXPECT_GT(right, 0.85) << name(dtype);
  }
}

TEST_F(TrainCudaTest, RefusesWhatItCannotTrain) {
  const Dataset data{random_tensor({4, 7}, 1), random_tensor({4, 5}, 2)};
  for (const LayerType type : {LayerType::rnn, LayerType::lstm, LayerType::kmeans, LayerType::metacognition}) {
    Network network(layer_list(dense(7, 7), sequential(layer_list(layer_case(type).layer))));
    try {
      cuda::GpuStepper(network, data, {}, device());
      ADD_FAILURE() << name(type);
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find(name(type)), std::string::npos) << error.what();
    }
  }
  Network network(layer_list(dense(7, 5)));
  EXPECT_THROW(cuda::GpuStepper(network, data, {.learn_scales = true}, device()), UnsupportedError);
  Network blocks(layer_list(dense(7, 32), with_dtype(dense(32, 5), BlockFormat::q4_0)));
  EXPECT_THROW(cuda::GpuStepper(blocks, data, {}, device()), UnsupportedError);
}

TEST_F(TrainCudaTest, LeavesWeightsAloneWhenNothingIsFinite) {
  Network network(layer_list(dense(7, 5)));
  const std::vector<float> before(network.layers()[0].weights->master().begin(),
                                  network.layers()[0].weights->master().end());
  Dataset data{random_tensor({4, 7}, 1), random_tensor({4, 5}, 2)};
  data.x[3] = std::numeric_limits<float>::infinity();
  cuda::GpuStepper stepper(network, data, {}, device());
  const Stepper::Result result = stepper.step(all_of(data), {}, 0.1f, 0);
  EXPECT_FALSE(result.updated);
  EXPECT_EQ(stepper.steps(), 0u);
  stepper.sync_to_host();
  EXPECT_TRUE(std::ranges::equal(network.layers()[0].weights->master(), before));
}

}  // namespace
}  // namespace imago
