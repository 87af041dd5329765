// The same seed and number of threads give the same bits; a batch gives what its examples give alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "imago/files.h"
#include "imago/system.h"
#include "imago/train.h"
#include "testing/gradient_check.h"

namespace imago {
namespace {

constexpr std::size_t kWidth = 48, kExamples = 40;

/// Images of 1 × 12 × 12 to sequences of 9 tokens, attention over them, a choice among five; half of it rounded. Large
/// enough that products, convolutions and sums are cut into parts for the threads.
Network mixed_network(std::uint64_t seed) {
  const ConvolutionShape image{.channels = 1, .filters = 48, .kernel = 3, .stride = 2, .padding = 1, .height = 12};
  const ConvolutionShape half{.channels = 48, .filters = 48, .kernel = 3, .stride = 2, .padding = 1, .height = 6};
  const AttentionShape heads{.width = kWidth, .heads = 4, .kv_heads = 2, .seq_length = 9};
  Network network(
      layer_list(convolution(2, image, Activation::silu),
                 with_dtype(convolution(2, half, Activation::silu), DType::int8),
                 with_dtype(attention(heads), DType::int4), rms_norm(kWidth),
                 sequential(layer_list(with_dtype(swiglu(kWidth, 96), DType::ternary), residual())),
                 mixture(dense(9 * kWidth, 2), layer_list(dense(9 * kWidth, 64, Activation::tanh),
                                                          with_dtype(dense(9 * kWidth, 64), DType::fp8e4m3))),
                 softmax(SoftmaxType::gumbel), dense(64, 5)),
      seed);
  return network;
}

Dataset images() {
  Dataset data{testing::random_tensor({kExamples, 1, 12, 12}, 3), Tensor<float>({kExamples})};
  for (std::size_t i = 0; i < kExamples; ++i) data.y[i] = static_cast<float>(i * 7 % 5);
  return data;
}

/// The network after training, masters and all.
std::string trained(int threads, std::uint64_t seed) {
  set_thread_count(threads);
  Network network = mixed_network(seed);
  TrainOptions options{.epochs = 2, .batch = 12, .seed = seed};
  options.loss.kind = LossKind::cross_entropy_logits;
  options.optimizer.kind = OptimizerKind::adam;
  options.optimizer.clip_norm = 1;
  const TrainResult result = train(network, images(), options);
  EXPECT_EQ(result.skipped_steps, 0u);
  EXPECT_EQ(result.steps, 8u);
  std::string bits(reinterpret_cast<const char*>(&result.final_loss), sizeof(double));
  morph_network(network, DType::float32);  // a checkpoint then holds the masters
  bits += serialize_network(network);
  set_thread_count(0);
  return bits;
}

class Repeatable : public ::testing::TestWithParam<int> {};

TEST_P(Repeatable, TrainingGivesTheSameBits) {
  const std::string once = trained(GetParam(), 7);
  EXPECT_TRUE(trained(GetParam(), 7) == once);
  EXPECT_FALSE(trained(GetParam(), 8) == once);
}

INSTANTIATE_TEST_SUITE_P(Threads, Repeatable, ::testing::Values(1, 2));

TEST(Batches, GiveWhatTheirExamplesGiveAlone) {
  Network network = mixed_network(5);
  network.layers()[6].config.is_disabled = true;  // noise differs from draw to draw
  const Tensor<float> x = images().x;
  for (const bool training : {false, true}) {
    const auto forward = [&](const Tensor<float>& input) {
      return training ? network.forward_training(input) : network.forward(input);
    };
    const Tensor<float> together = forward(x);
    ASSERT_EQ(together.shape(), (Shape{kExamples, 5}));
    float largest = 0;
    for (const float value : together.values()) largest = std::max(largest, std::abs(value));
    ASSERT_GT(largest, 0);
    for (std::size_t i = 0; i < kExamples; ++i) {
      Tensor<float> one({1, 1, 12, 12});
      std::ranges::copy(x.values().subspan(i * 144, 144), one.values().begin());
      const Tensor<float> alone = forward(one);
      ASSERT_EQ(alone.shape(), (Shape{1, 5}));
      for (std::size_t k = 0; k < 5; ++k) ASSERT_NEAR(alone[k], together[i * 5 + k], 1e-5f * largest) << i;
    }
  }
}

}  // namespace
}  // namespace imago
