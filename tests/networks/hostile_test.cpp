// Hostile architectures: senseless settings, sizes that overflow or exceed any memory, endless nesting, circular links.
// Each must quickly fail with an imago::Error, without allocating for it.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <limits>
#include <string>
#include <string_view>

#include "checkpoint/layer_fields.h"
#include "imago/error.h"
#include "imago/files.h"

namespace imago {
namespace {

const std::string kMost = std::to_string(std::numeric_limits<int>::max());

std::string network_of(std::string_view layers, int per_cell = 1) {
  return R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":)" + std::to_string(per_cell) + R"(,"layers":[)" +
         std::string(layers) + "]}";
}

/// Limits the memory of the process to 1 GB; not under sanitizers, which reserve more than the machine has.
void bound_memory() {
#ifndef IMAGO_SANITIZED
  static const bool bounded = [] {
    const rlimit limit{std::size_t{1} << 30, std::size_t{1} << 30};
    return ::setrlimit(RLIMIT_AS, &limit) == 0;
  }();
  ASSERT_TRUE(bounded);
#endif
}

/// The text of the error, or "" for a network that was built. Anything but imago's errors ends the test.
std::string problem_of(const std::string& text) {
  bound_memory();
  const auto start = std::chrono::steady_clock::now();
  std::string problem;
  try {
    build_network_from_json(text, 1);
  } catch (const Error& error) {
    problem = error.what();
    EXPECT_NE(problem, "");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  return problem;
}

void expect_problem(const std::string& text, std::string_view part) {
  EXPECT_NE(problem_of(text).find(part), std::string::npos) << problem_of(text) << "\nof " << text.substr(0, 300);
}

/// All whole-number settings of a layer at one value.
std::string all_settings(std::string_view value) {
  std::string keys;
  for (const checkpoint::LayerField& field : checkpoint::layer_fields()) {
    if (!std::holds_alternative<int LayerConfig::*>(field.place)) continue;
    keys += ",\"" + std::string(field.key) + "\":" + std::string(value);
  }
  return keys;
}

bool owns_weights(LayerType type) { return type < LayerType::softmax; }

TEST(HostileNetwork, EverySettingAtItsLargest) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const auto type = static_cast<LayerType>(id);
    std::string layer = R"({"type":")" + std::string(name(type)) + "\"" + all_settings(kMost);
    // A vector of 2^31 - 1 weights is within reach of machines; a thousand of them are not.
    const bool vector = type == LayerType::rms_norm || type == LayerType::layer_norm;
    if (!vector) {
      EXPECT_EQ(problem_of(network_of(layer + "}")).empty(), !owns_weights(type)) << name(type);
      continue;
    }
    std::string layers;
    for (int i = 0; i < 1000; ++i) layers += (i == 0 ? "" : ",") + layer + R"(,"l":)" + std::to_string(i) + "}";
    expect_problem(network_of(layers, 1000), "this machine has");
  }
}

TEST(HostileNetwork, EverySettingNegative) {
  for (const std::string_view value : {"-1", "-2147483648"}) {
    for (int id = 0; id < kLayerTypes; ++id) {
      const auto type = static_cast<LayerType>(id);
      const std::string layer = R"({"type":")" + std::string(name(type)) + "\"" + all_settings(value) + "}";
      EXPECT_EQ(problem_of(network_of(layer)).empty(), !owns_weights(type)) << name(type);
    }
  }
}

TEST(HostileNetwork, EachSettingAloneOnASoundLayer) {
  constexpr std::string_view kSound[] = {
      R"("type":"Dense","input_height":4,"output_height":3)",
      R"("type":"MHA","d_model":8,"num_heads":2)",
      R"("type":"SwiGLU","input_height":4,"output_height":3)",
      R"("type":"CNN1","input_channels":2,"filters":3,"kernel_size":3,"input_height":5)",
      R"("type":"CNN3","input_channels":2,"filters":3,"kernel_size":3,"input_height":5)",
      R"("type":"ConvTransposed2D","input_channels":2,"filters":3,"kernel_size":3,"input_height":5)",
      R"("type":"LSTM","input_height":4,"output_height":3,"seq_length":2)",
      R"("type":"Embedding","vocab_size":4,"embedding_dim":3)",
      R"("type":"KMeans","num_clusters":4,"input_height":3)",
  };
  for (const std::string_view sound : kSound) {
    ASSERT_EQ(problem_of(network_of("{" + std::string(sound) + "}")), "");
    for (const checkpoint::LayerField& field : checkpoint::layer_fields()) {
      if (!std::holds_alternative<int LayerConfig::*>(field.place)) continue;
      for (const std::string& value : {std::string("-1"), std::string("-2147483648"), std::string("0")}) {
        std::string text = "{" + std::string(sound) + "}";
        const std::string key = "\"" + std::string(field.key) + "\":";
        const std::size_t at = text.find(key);
        if (at == std::string::npos) {
          text.insert(1, key + value + ",");
        } else {
          text.replace(at + key.size(), 1, value);
        }
        problem_of(network_of(text));
      }
    }
  }
}

TEST(HostileNetwork, ProductsThatWrap) {
  // 65536⁴ is 0 in 64 bits.
  EXPECT_NE(problem_of(network_of(R"({"type":"CNN2","input_channels":65536,"filters":65536,"kernel_size":65536,)"
                                  R"("input_height":65536})")),
            "");
  EXPECT_NE(problem_of(network_of(R"({"type":"Embedding","vocab_size":2147483647,"embedding_dim":2147483647})")), "");
  EXPECT_NE(problem_of(network_of(R"({"type":"MHA","d_model":2147483647,"num_heads":1,"head_dim":2147483647})")), "");
  EXPECT_NE(problem_of(network_of(R"({"type":"LSTM","input_height":2147483647,"output_height":2147483647})")), "");
  EXPECT_NE(problem_of(network_of(R"({"type":"SwiGLU","input_height":2147483647,"output_height":2147483647})")), "");
}

TEST(HostileNetwork, MoreWeightsThanMemory) {
  expect_problem(network_of(R"({"type":"Dense","input_height":2000000,"output_height":2000000})"), "this machine has");
  expect_problem(network_of(R"({"type":"Sequential","sequential_layers":[{"type":"Dense","input_height":2000000,)"
                            R"("output_height":2000000}]})"),
                 "this machine has");
}

TEST(HostileNetwork, ResultsThatNothingBounds) {
  bound_memory();
  for (const std::string_view more : {R"("output_height":2147483647)", R"("padding":1000000000)"}) {
    Network network = build_network_from_json(
        network_of(R"({"type":"CNN2","input_channels":1,"filters":64,"kernel_size":2,"input_height":3,)" +
                   std::string(more) + "}"),
        1);
    EXPECT_THROW(network.forward(Tensor<float>({1, 1, 3, 3})), Error) << more;
    EXPECT_THROW(network.forward_training(Tensor<float>({1, 1, 3, 3})), Error) << more;
  }
}

TEST(HostileNetwork, CommandsThatGrowLayers) {
  bound_memory();
  Network network = build_network_from_json(
      network_of(R"({"type":"Metacognition","meta_rules":[{"Condition":2,"Threshold":1e9,"Command":98,)"
                 R"("Param":2147483000,"SelfOnly":true}],"meta_observed_layer":{"type":"Dense","input_height":4000,)"
                 R"("output_height":2}})"),
      1);
  EXPECT_THROW(network.forward(Tensor<float>({1, 4000})), Error);
}

TEST(HostileNetwork, NestedWithoutEnd) {
  constexpr std::string_view kContainers[][2] = {{R"({"type":"Sequential","sequential_layers":[)", "]}"},
                                                 {R"({"type":"Parallel","parallel_branches":[)", "]}"},
                                                 {R"({"type":"Metacognition","meta_observed_layer":)", "}"},
                                                 {R"({"type":"Parallel","combine_mode":"filter","filter_gate":)", "}"}};
  for (const auto& [open, close] : kContainers) {
    std::string text = R"({"type":"Residual"})";
    for (int depth = 1; depth <= 1000; ++depth) text = std::string(open) + text + std::string(close);
    EXPECT_NE(problem_of(network_of(text)), "") << open;
  }
  std::string text = network_of(R"({"type":"Residual"})");
  for (int depth = 1; depth <= 1000; ++depth)
    text = network_of(R"({"type":"Metacognition","meta_network":)" + text + "}");
  EXPECT_NE(problem_of(text), "");
}

TEST(HostileNetwork, LinksInCirclesAndLinksToNowhere) {
  const auto link = [](int l) { return R"({"is_remote_link":true,"target_l":)" + std::to_string(l) + "}"; };
  const auto holder = [&](int l, const std::string& links) {
    return R"({"type":"Sequential","l":)" + std::to_string(l) + R"(,"sequential_layers":[)" + links + "]}";
  };
  expect_problem(network_of(holder(0, link(0))), "circle");
  expect_problem(network_of(holder(0, link(1)) + "," + holder(1, link(0)), 2), "circle");
  expect_problem(network_of(holder(0, link(7))), "leads nowhere");
  expect_problem(network_of(holder(0, link(-1))), "leads nowhere");
  expect_problem(network_of(holder(0, R"({"is_remote_link":true,"target_z":2147483647})")), "leads nowhere");
  std::string doubling = R"({"type":"Residual"})";
  for (int l = 1; l < 60; ++l) doubling += "," + holder(l, link(l - 1) + "," + link(l - 1));
  expect_problem(network_of(doubling, 60), "more than 1000000 layers");
}

}  // namespace
}  // namespace imago
