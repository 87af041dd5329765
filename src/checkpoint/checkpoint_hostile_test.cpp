// Checkpoints from strangers (threats.md 55 to 63): one error that names the place, never anything else.

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "imago/error.h"
#include "imago/files.h"
#include "testing/bounded.h"

namespace imago {
namespace {

std::string problem_of(std::string_view text) {
  try {
    deserialize_network(text, {}, "f");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

std::string network_of(std::string_view layer_keys) {
  return R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{)" + std::string(layer_keys) + "}]}";
}

void expect_problem(std::string_view text, std::string_view problem) {
  EXPECT_NE(problem_of(text).find(problem), std::string::npos) << problem_of(text) << "\nof " << text.substr(0, 300);
}

void expect_layer_problem(std::string_view keys, std::string_view problem) {
  expect_problem(network_of(keys), problem);
}

/// A Dense 2 → 1 in `dtype` with these weights.
void expect_weight_problem(std::string_view dtype, std::string_view weights, std::string_view problem,
                           std::string_view more = "") {
  expect_layer_problem(R"("type":"Dense","native":true,"input_height":2,"output_height":1,"dtype":")" +
                           std::string(dtype) + R"(","weights":")" + std::string(weights) + "\"" + std::string(more),
                       problem);
}

const std::string kGood = network_of(
    R"("type":"Parallel","parallel_branches":[{"type":"Dense","native":true,"dtype":"int8","input_height":2,)"
    R"("output_height":1,"weights":"AQI=","scale":0.5}],"mask":[true],"q_norm":"AAAAPw==")");

TEST(HostileCheckpoint, CutOrFlippedFilesGiveErrorsOrNetworks) {
  ASSERT_EQ(problem_of(kGood), "no error");
  for (std::size_t length = 0; length < kGood.size(); ++length) {
    EXPECT_NE(problem_of(kGood.substr(0, length)), "no error") << length;
  }
  std::mt19937 random(3);
  for (int i = 0; i < 10000; ++i) {
    std::string flipped = kGood;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 + random() % 255);
    problem_of(flipped);
  }
  std::string noise = kGood.substr(0, kGood.find("AQI="));  // within a string, as far as that goes
  for (int i = 0; i < 10'000'000; ++i) noise += static_cast<char>(random());
  EXPECT_NE(problem_of(noise), "no error");
  std::string blank = network_of("");
  blank.insert(1, std::string(10'000'000, ' '));
  EXPECT_EQ(problem_of(blank), "no error");
}

TEST(HostileCheckpoint, ALongListOfDigitsOrLettersIsNoWeight) {
  expect_weight_problem("int8", std::string(8'000'000, 'A'), "6000000 bytes for 2 weights");
  expect_weight_problem("int8", std::string(8'000'001, 'A'), "is not base64");
}

TEST(HostileCheckpoint, Names) {
  expect_layer_problem(R"("type":"Dens")", "unknown layer type 'Dens'");
  expect_layer_problem(R"("activation":"Swish")", "unknown activation 'Swish'");
  expect_layer_problem(R"("dtype":"int3")", "int3");
  expect_layer_problem(R"("dtype":21)", "dtype must be a string");
  EXPECT_EQ(problem_of(network_of(R"("dtype":"INT4")")), "no error") << "any case will do";
  expect_layer_problem(R"("softmax_type":"Hard")", "unknown softmax type 'Hard'");
  expect_layer_problem(R"("softmax_type":10)", "from 0 to 9");
  expect_layer_problem(R"("granularity":"column")", "unknown granularity 'column'");
  EXPECT_EQ(problem_of(network_of(R"("type":"","activation":"","dtype":"")")), "no error");
}

TEST(HostileCheckpoint, Weights) {
  expect_weight_problem("int8", "AQI", "is not base64");
  expect_weight_problem("int8", "A-I=", "is not base64");
  expect_weight_problem("int8", "AQ=I", "is not base64");
  expect_weight_problem("int8", "AQJ=", "is not base64");
  expect_weight_problem("int8", "A", "is not base64");
  expect_weight_problem("int8", "AQI==", "is not base64");
  expect_weight_problem("int8", "A_I=", "is not base64");
  expect_weight_problem("int8", "A I=", "is not base64");
  expect_weight_problem("int4", "ARI=", "2 bytes for 2 weights in int4, which take 1");
  expect_weight_problem("binary", "BA==", "layers.0 (Dense)");  // bits after the last weight
  expect_weight_problem("int8", "AQID", "layers.0 (Dense) do not fit: 3 bytes for 2 weights in int8, which take 2");
  expect_weight_problem("int8", "AQ==", "1 bytes for 2 weights");
  expect_weight_problem("int2", "kQ==", "layers.0 (Dense)");     // bits after the last weight
  expect_weight_problem("ternary", "gA==", "layers.0 (Dense)");  // code 10
  expect_weight_problem("float16", "AAAAAAAA", "6 bytes for 2 weights");
  expect_layer_problem(R"("type":"Dense","weights":"AAAAPw==")", "output_height");
  expect_layer_problem(R"("type":"Dense","weights":7)", "weights must be a string");
  expect_layer_problem(R"("type":"Softmax","weights":"AAAAPw==")", "for 0 weights");
  expect_layer_problem(R"("type":"Dense","input_height":2147483647,"output_height":2147483647,"weights":"AAAAPw==")",
                       "do not fit");
}

TEST(HostileCheckpoint, Scales) {
  expect_weight_problem("int8", "AQI=", "not negative", R"(,"scale":-1)");
  expect_weight_problem("int8", "AQI=", "out of range", R"(,"scale":1e99)");
  expect_weight_problem("int8", "AQI=", "scale must be a number", R"(,"scale":"1")");
  expect_weight_problem("int8", "AQI=", "either scale or scales", R"(,"scale":1,"scales":"AACAPw==")");
  expect_weight_problem("int8", "AQI=", "none per row or group", R"(,"scales":"AACAPw==")");
  expect_weight_problem("int8", "AQI=", "missing", R"(,"granularity":"row")");
  expect_weight_problem("int8", "AQI=", "scales", R"(,"granularity":"row","scales":"AACAPwAAgD8=")");
  expect_weight_problem("int8", "AQI=", "not negative", R"(,"granularity":"row","scales":"AACAvw==")");
  expect_weight_problem("int8", "AQI=", "whole number of float32", R"(,"granularity":"row","scales":"AACA")");
  expect_weight_problem("float16", "AQIDBA==", "none per row or group", R"(,"granularity":"row","scales":"AACAPw==")");
  expect_weight_problem("int8", "AQI=", "32, 64 or 128", R"(,"granularity":"group","group":33,"scales":"AACAPw==")");
}

TEST(HostileCheckpoint, Blocks) {
  const auto problem = [](const std::string& keys) -> std::string {
    try {
      deserialize_network(R"({"depth":1,"rows":1,"cols":1,"layers_per_cell":1,"layers":[{"z":0,"y":0,"x":0,"l":0,)"
                          R"("type":"Dense","input_height":32,"output_height":1,)" +
                          keys + "}]}");
    } catch (const FormatError& error) {
      return error.what();
    }
    return "none";
  };
  const std::string blocks = R"("blocks":"AAAAAAAAAAAAAAAAAAAAAAAA")";  // 18 bytes
  EXPECT_EQ(problem(R"("block_format":"q4_0",)" + blocks), "none");
  EXPECT_EQ(problem(blocks + R"(,"block_format":"Q4_0")"), "none") << "in any order, in any case";
  EXPECT_NE(problem(R"("block_format":"q8_0",)" + blocks).find("18 bytes for 32 weights in q8_0, which take 34"),
            std::string::npos);
  EXPECT_NE(problem(R"("block_format":"q4_k",)" + blocks).find("a row of 32 weights is not a multiple"),
            std::string::npos);
  EXPECT_NE(problem(R"("block_format":"int8",)" + blocks).find("int8 is not a block format"), std::string::npos);
  EXPECT_NE(problem(R"("block_format":"q4_9",)" + blocks).find("q4_9"), std::string::npos);
  EXPECT_NE(problem(blocks).find("blocks without a block_format"), std::string::npos);
  EXPECT_NE(problem(R"("block_format":"q4_0","weights":"AAAA",)" + blocks).find("either weights or blocks"),
            std::string::npos);
  EXPECT_NE(problem(R"("block_format":"q4_0","scales":"AACAPw==",)" + blocks).find("neither scales nor"),
            std::string::npos);
}

TEST(HostileCheckpoint, Numbers) {
  expect_layer_problem(R"("input_height":1e999)", "out of range");
  expect_layer_problem(R"("input_height":2147483648)", "from -2147483648 to 2147483647");
  expect_layer_problem(R"("input_height":1.5)", "whole number");
  expect_layer_problem(R"("input_height":"4")", "input_height must be a number");
  expect_layer_problem(R"("temperature":NaN)", "a JSON value was expected");
  expect_layer_problem(R"("temperature":Infinity)", "a JSON value was expected");
  expect_layer_problem(R"("temperature":-Infinity)", "malformed number");
  expect_layer_problem(R"("temperature":1e999)", "out of range");
  expect_layer_problem(R"("padding":01)", "malformed number");
  expect_layer_problem(R"("padding":)" + std::string(1000000, '1'), "from -2147483648");
  expect_layer_problem(R"("is_disabled":1)", "is_disabled must be true or false");
  expect_layer_problem(R"("mask":[1])", "mask must be true or false");
  expect_layer_problem(R"("meta_rules":[{"Command":1e60}])", "out of range");
}

TEST(HostileCheckpoint, GridAndLayers) {
  expect_layer_problem(R"("type":"Dense","type":"Dense")", "comes twice");
  expect_layer_problem(R"("z":1)", "(1, 0, 0, 0) lies outside the grid");
  expect_layer_problem(R"("l":-1)", "outside the grid");
  const auto grid = [](std::string_view sizes, std::string_view layers) {
    return "{" + std::string(sizes) + ",\"layers\":" + std::string(layers) + "}";
  };
  expect_problem(grid(R"("depth":1,"rows":1,"cols":1,"layers_per_cell":2)", "[{},{}]"), "(0, 0, 0, 0) comes twice");
  expect_problem(grid(R"("depth":0,"rows":1,"cols":1,"layers_per_cell":1)", "[]"), "depth must be from 1");
  expect_problem(grid(R"("depth":1,"rows":1,"cols":1)", "[]"), "no layers_per_cell");
  expect_problem(grid(R"("depth":1000000,"rows":1,"cols":1,"layers_per_cell":1)", "[]"), "more cells");
  expect_problem(grid(R"("depth":65536,"rows":65536,"cols":65536,"layers_per_cell":65536)", "[]"), "more cells");
  expect_problem(grid(R"("depth":1,"rows":1,"cols":1,"layers_per_cell":1)", "{}"), "layers must be an array");
  expect_problem(grid(R"("depth":1,"rows":1,"cols":1,"layers_per_cell":1)", "[7]"), "must be an object");
  expect_problem("[]", "must be an object");
}

TEST(HostileCheckpoint, Depth) {
  const auto nested = [](int depth) {
    std::string keys = R"("type":"Residual")";
    for (int i = 0; i < depth; ++i) keys = R"("type":"Parallel","parallel_branches":[{)" + keys + "}]";
    return network_of(keys);
  };
  EXPECT_EQ(problem_of(nested(31)), "no error");
  expect_problem(nested(32), "deeper than 32");
  expect_problem(nested(10000), "nested deeper than");
}

}  // namespace
}  // namespace imago
