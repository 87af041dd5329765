#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/loom.h"
#include "testing/wide_network.h"

namespace imago {
namespace {

using testing::check_network;
using testing::random_network;
using testing::random_tensor;

constexpr Activation kTanh = Activation::tanh;

std::string error_of(Network& network, const Tensor<float>& x) {
  try {
    network.forward(x);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Parallel, EveryModeAgreesWithFloat64InBothDirections) {
  for (const char* mode : {"", "concat", "grid_scatter", "add", "avg"}) {
    SCOPED_TRACE(mode);
    Network network =
        random_network(layer_list(parallel(mode, layer_list(dense(4, 3, kTanh), dense(4, 3), dense(4, 3, kTanh)))));
    check_network(network, random_tensor({5, 4}, 1));
  }
}

TEST(Parallel, ConcatenatesBranchesOfDifferentWidthsPerSample) {
  Network network = random_network(
      layer_list(parallel("concat", layer_list(dense(4, 2, kTanh), dense(4, 5), dense(4, 1))), dense(8, 2)));
  check_network(network, random_tensor({3, 4}, 2));
  check_network(network, random_tensor({4}, 3));  // one sample without a batch
  EXPECT_EQ(network.forward(random_tensor({3, 4}, 2)).shape(), (Shape{3, 2}));
}

TEST(Parallel, FilterTrainsBranchesAndGatePerSample) {
  Network network =
      random_network(layer_list(mixture(dense(4, 3), layer_list(dense(4, 2, kTanh), dense(4, 2), dense(4, 2, kTanh)))));
  check_network(network, random_tensor({6, 4}, 4, 2));
}

TEST(Parallel, FilterReadsTheFirstValuesOfAWiderGate) {
  Network network = random_network(layer_list(mixture(dense(3, 5, kTanh), layer_list(dense(3, 2), dense(3, 2)))));
  check_network(network, random_tensor({4, 3}, 5));
}

TEST(Parallel, BranchesOfRankThreeAreFlattenedPerSample) {
  Network network = random_network(layer_list(parallel("avg", layer_list(dense(4, 3, kTanh), dense(4, 3)))));
  const Tensor<float> x = random_tensor({2, 5, 4}, 6);
  check_network(network, x);
  EXPECT_EQ(network.forward(x).shape(), (Shape{2, 15}));
}

TEST(Parallel, DisabledBranchGivesItsInput) {
  for (const char* mode : {"concat", "add", "avg"}) {
    std::vector<Layer> branches = layer_list(dense(3, 3, kTanh), dense(3, 3), dense(3, 3));
    branches[1].config.is_disabled = true;
    Network network = random_network(layer_list(parallel(mode, std::move(branches))));
    network.layers()[0].branches[1].weights.reset();
    check_network(network, random_tensor({2, 3}, 7));
  }
}

TEST(Parallel, WithoutBranchesIsTheIdentity) {
  Network network(layer_list(parallel("add", {})));
  const Tensor<float> x = random_tensor({2, 3}, 8);
  EXPECT_TRUE(std::ranges::equal(network.forward_training(x).values(), x.values()));
  EXPECT_TRUE(std::ranges::equal(network.backward(x).values(), x.values()));
}

TEST(Parallel, SaysWhatDoesNotFit) {
  const Tensor<float> x = random_tensor({2, 4}, 9);
  Network unequal = random_network(layer_list(parallel("add", layer_list(dense(4, 3), dense(4, 2)))));
  EXPECT_EQ(error_of(unequal, x),
            "layer (0,0,0,0), Parallel: combine_mode 'add' needs branches of one size, but branch 0 gives 3 values per "
            "sample and branch 1 gives 2");
  Network narrow = random_network(layer_list(mixture(dense(4, 1), layer_list(dense(4, 3), dense(4, 3)))));
  EXPECT_EQ(error_of(narrow, x), "layer (0,0,0,0), Parallel: its filter gate gives 1 values per sample for 2 branches");
  EXPECT_THROW(Network(layer_list(parallel("filter", layer_list(dense(4, 3))))), UsageError);
  EXPECT_THROW(Network(layer_list(parallel("sum", layer_list(dense(4, 3))))), UsageError);
  Network fine = random_network(layer_list(parallel("add", layer_list(dense(4, 3)))));
  EXPECT_NE(error_of(fine, Tensor<float>(Shape{0, 4})), "");
}

/// Both branches of the original's cases: Dense 4 -> 3, tanh and linear.
TEST(Parallel, GivesWhatTheOriginalGives) {
  for (const std::string mode : {"", "add", "avg", "grid_scatter", "filter"}) {
    SCOPED_TRACE(mode);
    const nlohmann::json reference =
        testing::loom_reference("parallel_" + mode + (mode.empty() ? "" : "_") + "float32");
    Layer layer = parallel(mode, layer_list(dense(4, 3, kTanh), dense(4, 3)));
    if (mode == "filter") layer.filter_gate = std::make_unique<Layer>(dense(4, 2));
    Network network(layer_list(std::move(layer)));
    Layer& built = network.layers()[0];
    for (std::size_t i = 0; i < 2; ++i) testing::set_loom_weights(built.branches[i], reference, i);
    if (mode == "filter") {
      const auto gate = reference.at("not_in_checkpoint").at("filter_gate").at("weights_float32");
      built.filter_gate->weights->set_master(gate.get<std::vector<float>>());
    }
    const Tensor<float> wanted = testing::loom_tensor(reference, "output");
    const Tensor<float>& got = network.forward(testing::loom_tensor(reference, "input"));
    ASSERT_EQ(got.shape(), wanted.shape());
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-6 + 2e-5 * std::abs(wanted[i]));
  }
}

}  // namespace
}  // namespace imago
