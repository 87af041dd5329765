// Networks compared layer by layer, and scored on data.

#include <gtest/gtest.h>

#include <cmath>

#include "imago/error.h"
#include "imago/precision.h"

namespace imago {
namespace {

TEST(CompareLayers, SeesTypesBytesAndErrors) {
  Network a(layer_list(dense(6, 8), sequential(layer_list(dense(8, 8), dense(8, 4))), softmax()), 3);
  Network b(layer_list(dense(6, 8), sequential(layer_list(dense(8, 8), dense(8, 4))), softmax()), 3);
  morph_network(b, DType::int4);
  const ModelComparison comparison = compare_layers(a, b);
  ASSERT_EQ(comparison.tensors.size(), 3u);
  const ComparedTensor& first = comparison.tensors[0];
  const Distortion wanted = a.layers()[0].weights->distortion(DType::int4);
  EXPECT_NEAR(first.rmse.value(), wanted.rmse, 1e-12);
  EXPECT_NEAR(first.relative_rmse.value(), wanted.relative_rmse, 1e-9);
  EXPECT_NEAR(first.cosine.value(), wanted.cosine, 1e-6);
  EXPECT_EQ(first.weights, 48u);
  EXPECT_EQ(first.bytes_a, 192u);
  EXPECT_EQ(first.bytes_b, 24u + 4u) << "codes of half a byte, and a scale";
  EXPECT_EQ(comparison.tensors[1].weights, 96u) << "with what is inside";
  EXPECT_EQ(comparison.tensors[2].relative_rmse, std::nullopt) << "no weights";
  EXPECT_EQ(comparison.a.type, "float32");
  EXPECT_EQ(comparison.b.type, "int4");
  EXPECT_EQ(comparison.a.bytes, 4u * 144);
}

/// y = x W with W = 1, so that losses can be told by hand.
Network identity() {
  Network network(layer_list(dense(2, 2)), 0);
  network.layers()[0].weights->set_master(std::vector<float>{1, 0, 0, 1});
  return network;
}

TEST(ScoreNetwork, LossIsThatOfAllExamples) {
  Network network = identity();
  const Dataset data{Tensor<float>({3, 2}, {1, 2, 3, 4, 5, 6}), Tensor<float>({3, 2}, {1, 2, 3, 4, 5, 9})};
  for (const std::size_t batch : {1, 2, 256}) {
    const NetworkScore score = score_network(network, data, std::nullopt, batch);
    EXPECT_NEAR(score.loss, 9.0 / 6, 1e-6) << batch;
    EXPECT_EQ(score.loss_kind, LossKind::mse);
    EXPECT_EQ(score.accuracy, std::nullopt);
  }
}

TEST(ScoreNetwork, ClassesHaveAnAccuracy) {
  Network network = identity();
  const Tensor<float> x({4, 2}, {2, 0, 0, 2, 2, 0, 0, 2});
  const Dataset numbers{x, Tensor<float>({4}, {0, 1, 1, -1})};
  const double right = std::log(1 + std::exp(-2.0)), wrong = std::log(1 + std::exp(2.0));
  for (const std::size_t batch : {1, 3, 256}) {
    const NetworkScore score = score_network(network, numbers, std::nullopt, batch);
    EXPECT_EQ(score.loss_kind, LossKind::cross_entropy_logits);
    EXPECT_NEAR(score.loss, (2 * right + wrong) / 3, 1e-6) << "the example of class -1 does not count";
    EXPECT_NEAR(score.accuracy.value(), 2.0 / 3, 1e-12);
  }
  const Dataset rows{x, Tensor<float>({4, 2}, {1, 0, 0, 1, 0, 1, 0, 1})};
  EXPECT_NEAR(score_network(network, rows).accuracy.value(), 0.75, 1e-12);
}

TEST(ScoreNetwork, ProbabilitiesAreJudgedAsSuch) {
  Network network(layer_list(dense(2, 2), softmax()), 0);
  network.layers()[0].weights->set_master(std::vector<float>{1, 0, 0, 1});
  const Dataset data{Tensor<float>({2, 2}, {2, 0, 0, 2}), Tensor<float>({2, 1}, {0, 0})};
  const NetworkScore score = score_network(network, data);
  EXPECT_EQ(score.loss_kind, LossKind::cross_entropy);
  EXPECT_EQ(score.accuracy, 0.5);
  const Tensor<float> one_hot({2, 2}, {1, 0, 1, 0});
  EXPECT_NEAR(score.loss, evaluate_loss({.kind = LossKind::cross_entropy}, network.forward(data.x), one_hot), 1e-6);
  const Dataset beyond{data.x, Tensor<float>({2, 1}, {0, 2})};
  EXPECT_THROW(score_network(network, beyond), UsageError);
}

}  // namespace
}  // namespace imago
