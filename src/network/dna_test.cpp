#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "imago/network.h"
#include "testing/loom.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::random_network;
using testing::random_tensor;

/// 1 × 1 × 1 × n of Dense layers of one row with these weights.
Network network_of(const std::vector<std::vector<float>>& rows) {
  std::vector<Layer> layers;
  for (const std::vector<float>& row : rows) layers.push_back(dense(static_cast<int>(row.size()), 1));
  Network network(std::move(layers));
  for (std::size_t i = 0; i < rows.size(); ++i) network.layers()[i].weights->set_master(rows[i]);
  return network;
}

LayerSignature signature(std::vector<float> direction, LayerType type = LayerType::dense,
                         DType dtype = DType::float32) {
  return {{}, type, dtype, std::move(direction)};
}

double length(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value) * value;
  return std::sqrt(sum);
}

TEST(Dna, DirectionsHaveUnitLengthAndZerosStay) {
  const Network network = network_of({{3, 4}, {0, 0, 0}});
  const std::vector<LayerSignature> dna = extract_dna(network);
  ASSERT_EQ(dna.size(), 2u);
  EXPECT_FLOAT_EQ(dna[0].direction[0], 0.6f);
  EXPECT_FLOAT_EQ(dna[0].direction[1], 0.8f);
  EXPECT_EQ(dna[1].direction, std::vector<float>(3));
  EXPECT_EQ(dna[1].at, (Coordinates{0, 0, 0, 1}));
}

TEST(Dna, ContainersJoinWhatIsInsideThem) {
  std::vector<Layer> layers =
      layer_list(parallel("filter", layer_list(dense(2, 1), remote_link({0, 0, 0, 2}), softmax())),
                 sequential(layer_list(dense(2, 1))), dense(2, 1), metacognition(dense(2, 1), {}), residual(),
                 parallel("add", layer_list(remote_link({0, 0, 0, 2}))));
  layers[0].filter_gate = std::make_unique<Layer>(dense(2, 1));
  Network network(std::move(layers));
  network.layers()[0].branches[0].weights->set_master(std::vector<float>{3, 4});
  network.layers()[0].filter_gate->weights->set_master(std::vector<float>{0, 5});
  network.layers()[1].sub_layers[0].weights->set_master(std::vector<float>{-2, 0});
  network.layers()[3].observed->weights->set_master(std::vector<float>{0, -7});
  const std::vector<LayerSignature> dna = extract_dna(network);
  const double third = 1 / std::sqrt(3.0);
  const std::vector<double> joined = {0.6 * third, 0.8 * third, third, 0, third};
  ASSERT_EQ(dna[0].direction.size(), joined.size());
  for (std::size_t i = 0; i < joined.size(); ++i) EXPECT_NEAR(dna[0].direction[i], joined[i], 1e-6) << i;
  EXPECT_EQ(dna[1].direction, (std::vector<float>{-1, 0}));
  EXPECT_EQ(dna[3].direction, (std::vector<float>{0, -1}));
  EXPECT_EQ(dna[3].type, LayerType::metacognition);
  EXPECT_EQ(dna[4].direction, std::vector<float>{1});
  EXPECT_EQ(dna[5].direction, std::vector<float>{1});
}

TEST(Dna, SeesTheWeightsAsTheyAreComputedWith) {
  Network network = network_of({{1, 0.3f, -0.2f, 0.9f}});
  network.layers()[0].config.dtype = DType::ternary;  // scale 1: 1, 0, 0, 1
  const std::vector<LayerSignature> dna = extract_dna(network);
  EXPECT_EQ(dna[0].dtype, DType::ternary);
  const float half = static_cast<float>(1 / std::sqrt(2.0));
  EXPECT_EQ(dna[0].direction, (std::vector<float>{half, 0, 0, half}));
  EXPECT_NEAR(length(dna[0].direction), 1, 1e-6);
}

TEST(Dna, Similarity) {
  EXPECT_FLOAT_EQ(similarity(signature({0.6f, 0.8f}), signature({0.8f, 0.6f})), 0.96f);
  EXPECT_EQ(similarity(signature({1, 0}), signature({-1, 0})), -1);
  EXPECT_EQ(similarity(signature({1}), signature({1}, LayerType::softmax)), 0);
  EXPECT_EQ(similarity(signature({1}), signature({1, 0})), 0);
  EXPECT_EQ(similarity(signature({0, 0}), signature({0, 0})), 1);
  EXPECT_EQ(similarity(signature({0, 0}), signature({1, 0})), 0);
  const LayerSignature small = signature({1, 0}, LayerType::dense, DType::int8);
  EXPECT_EQ(similarity(signature({1, 0}), small), 1);
  EXPECT_EQ(similarity(signature({1, 0}), small, true), 0);
  const std::vector<float> many(1000, static_cast<float>(1 / std::sqrt(999.0)));  // a little too long: still 1
  EXPECT_EQ(similarity(signature(many), signature(many)), 1);
}

TEST(Dna, AgreesWithTheOriginal) {
  const nlohmann::json reference = testing::loom_reference("dna");
  const auto a = reference.at("a").get<std::vector<float>>(), b = reference.at("b").get<std::vector<float>>();
  const Network first = network_of({a}), second = network_of({b});
  EXPECT_NEAR(compare_networks(first, second).overall, reference.at("overall_a_b").get<float>(), 1e-6);
  Network as_int8 = network_of({a});
  morph_network(as_int8, DType::int8);
  // The original calls layers of different types strangers; so does the strict comparison.
  EXPECT_EQ(compare_networks(first, as_int8, true).overall, reference.at("overall_a_a_as_int8").get<float>());
  EXPECT_GT(compare_networks(first, as_int8).overall, 0.9999f);
  EXPECT_LT(compare_networks(first, as_int8).overall, 1.0f);
}

TEST(Dna, ComparesPlacesThatBothHave) {
  Network a(1, 1, 2, 2), b(1, 2, 1, 2);
  for (Network* network : {&a, &b}) {
    for (Layer& layer : network->layers()) {
      layer.config.input_height = layer.config.output_height = 2;
      layer.weights.emplace(2, 2).randomize(network->index(layer.at) + (network == &a ? 0 : 50), 1);
    }
  }
  b.at({0, 0, 0, 1}).weights->set_master(a.at({0, 0, 0, 1}).weights->master());
  b.at({0, 0, 0, 0}).weights->set_master(std::vector<float>{1, 0, 0, 0});
  a.at({0, 0, 0, 0}).weights->set_master(std::vector<float>{0, 1, 0, 0});
  const NetworkComparison result = compare_networks(a, b);
  ASSERT_EQ(result.overlaps.size(), 2u);
  EXPECT_EQ(result.overlaps[0].at, (Coordinates{0, 0, 0, 0}));
  EXPECT_EQ(result.overlaps[0].similarity, 0);
  EXPECT_EQ(result.overlaps[1].at, (Coordinates{0, 0, 0, 1}));
  EXPECT_NEAR(result.overlaps[1].similarity, 1, 1e-6);
  EXPECT_NEAR(result.overall, 0.5, 1e-6);
}

TEST(Dna, LogicShiftsFindLayersThatMoved) {
  const std::vector<float> p = {1, 0, 0}, q = {0, 1, 0}, r = {0, 0, 1}, almost_q = {0.1f, 1, 0};
  const NetworkComparison result = compare_networks(network_of({p, q, r}), network_of({almost_q, p, {0.7f, 0.7f, 0}}));
  ASSERT_EQ(result.logic_shifts.size(), 2u);
  EXPECT_EQ(result.logic_shifts[0].source, (Coordinates{0, 0, 0, 0}));
  EXPECT_EQ(result.logic_shifts[0].target, (Coordinates{0, 0, 0, 1}));
  EXPECT_FLOAT_EQ(result.logic_shifts[0].overlap, 1);
  EXPECT_EQ(result.logic_shifts[1].source, (Coordinates{0, 0, 0, 1}));
  EXPECT_EQ(result.logic_shifts[1].target, (Coordinates{0, 0, 0, 0}));
  EXPECT_NEAR(result.logic_shifts[1].overlap, 1 / std::sqrt(1.01), 1e-6);
}

TEST(Dna, OnTiesTheSamePlaceWinsThenTheFirst) {
  const std::vector<float> p = {1, 0}, q = {0, 1};
  // All alike: nothing has moved, though the first layer of b is as good as any.
  EXPECT_TRUE(compare_networks(network_of({p, p, p}), network_of({p, p, p})).logic_shifts.empty());
  const NetworkComparison result = compare_networks(network_of({q, q, p}), network_of({p, p, q}));
  ASSERT_EQ(result.logic_shifts.size(), 3u);
  EXPECT_EQ(result.logic_shifts[0].target, (Coordinates{0, 0, 0, 2}));
  EXPECT_EQ(result.logic_shifts[2].target, (Coordinates{0, 0, 0, 0}));
}

TEST(Dna, WholeNetworksSurviveQuantization) {
  const auto build = [] {
    return random_network(layer_list(sequential(layer_list(dense(16, 16), residual(), rms_norm(16))),
                                     parallel("add", layer_list(dense(16, 8), dense(16, 8))), softmax()));
  };
  const Network original = build();
  Network morphed = build();
  morph_network(morphed, DType::int8);
  const NetworkComparison result = compare_networks(original, morphed);
  EXPECT_EQ(result.overlaps.size(), 3u);
  EXPECT_GT(result.overall, 0.999f);
  EXPECT_TRUE(result.logic_shifts.empty());
  Network coarse = build();
  morph_network(coarse, DType::binary);
  EXPECT_LT(compare_networks(original, coarse).overall, result.overall);  // what binary loses can be seen
}

}  // namespace
}  // namespace imago
