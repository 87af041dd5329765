// What the original engine computed, computed again: checkpoints are loaded through the library and run on the recorded
// input. Where the original is wrong, imago departs from it, and must.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "imago/files.h"
#include "testing/loom_files.h"

namespace imago {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Floats, or "NaN", "Inf", "-Inf".
std::vector<float> values_of(const json& numbers) {
  std::vector<float> values;
  for (const json& number : numbers) {
    if (!number.is_string()) {
      values.push_back(number.get<float>());
    } else if (const std::string text = number; text == "NaN") {
      values.push_back(std::nanf(""));
    } else {
      values.push_back(text == "Inf" ? HUGE_VALF : -HUGE_VALF);
    }
  }
  return values;
}

Tensor<float> tensor_of(const json& reference, const std::string& name) {
  return {Shape(reference.at(name + "_shape").get<std::vector<std::size_t>>()), values_of(reference.at(name))};
}

/// Settings that the original's format loses.
void restore_lost_settings(Layer& layer, const json& lost) {
  if (lost.contains("mask")) layer.config.mask = lost.at("mask").get<std::vector<bool>>();
  if (lost.contains("hierarchy_levels")) {
    layer.config.hierarchy_levels = lost.at("hierarchy_levels").get<std::vector<int>>();
  }
  if (!lost.contains("filter_gate")) return;
  const json& gate = lost.at("filter_gate");
  ASSERT_EQ(gate.at("type"), "Dense");
  layer.filter_gate = std::make_unique<Layer>(dense(gate.at("input_height"), gate.at("output_height"),
                                                    parse_activation(gate.at("activation").get<std::string>())));
  const WeightShape shape = weight_shape(layer.filter_gate->config);
  layer.filter_gate->weights.emplace(shape).set_master(values_of(gate.at("weights_float32")));
}

void expect_values(std::span<const float> got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (std::isnan(wanted[i])) {
      EXPECT_TRUE(std::isnan(got[i])) << what << ", entry " << i << ": " << got[i];
    } else if (std::isinf(wanted[i])) {
      EXPECT_EQ(got[i], wanted[i]) << what << ", entry " << i;
    } else {
      EXPECT_NEAR(got[i], wanted[i], 2e-6f + 2e-5f * std::abs(wanted[i])) << what << ", entry " << i;
    }
  }
}

/// Departures of spec/layers.md that show in this data, and what the data says of them. All other cases must agree.
struct Departure {
  const char* tag;
  const char* known_defect;
  bool of_output;
};
constexpr Departure kDepartures[] = {
    {"D3", "gradients use an approximate GELU derivative; output is right", false},
    {"D21", "output is all zeros for this dtype", true},
    {"D23", "assignments are uniform for this dtype", true},
    {"D24", "blend of softmax and sparsemax instead of entmax", true},
};

const Departure* departure_of(const json& reference) {
  if (!reference.contains("known_defect")) return nullptr;
  const auto found = std::ranges::find(kDepartures, reference.at("known_defect").get<std::string>(),
                                       [](const Departure& departure) { return std::string(departure.known_defect); });
  if (found == std::end(kDepartures)) throw std::runtime_error("a defect without a tag");
  return found;
}

struct Compared {
  std::size_t outputs = 0, gradients = 0, without_output = 0;
  std::map<std::string, std::size_t> departures = {};
};

/// The original's mistake, made again, would be one of ours.
void expect_departure(Network& network, const json& reference) {
  const Tensor<float>& got = network.forward(tensor_of(reference, "input"));
  const std::vector<float> recorded = values_of(reference.at("output"));
  ASSERT_EQ(got.size(), recorded.size());
  float most = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    EXPECT_TRUE(std::isfinite(got[i])) << "entry " << i;
    most = std::max(most, std::abs(got[i] - recorded[i]));
  }
  EXPECT_GT(most, 1e-3f);
}

void compare_case(const fs::path& folder, const json& reference, Compared& compared) {
  if (reference.at("output").is_null()) {  // Gumbel noise
    ++compared.without_output;
    return;
  }
  const bool fp4 = reference.at("dtype") == "fp4" || reference.at("dtype") == "mixed";
  Network network = load_network(folder / reference.at("checkpoint").get<std::string>(),
                                 {.fp4 = fp4 ? Fp4Table::legacy : Fp4Table::ocp});
  if (reference.contains("not_in_checkpoint")) {
    restore_lost_settings(network.layers()[0], reference.at("not_in_checkpoint"));
  }
  const Departure* departure = departure_of(reference);
  if (departure != nullptr) ++compared.departures[departure->tag];
  if (departure != nullptr && departure->of_output) return expect_departure(network, reference);

  const Tensor<float> x = tensor_of(reference, "input");
  const Tensor<float> wanted = tensor_of(reference, "output");
  for (const bool training : {false, true}) {
    const Tensor<float>& got = training ? network.forward_training(x) : network.forward(x);
    EXPECT_EQ(got.shape().to_string(), wanted.shape().to_string());
    expect_values(got.values(), values_of(reference.at("output")), training ? "forward_training" : "forward");
  }
  ++compared.outputs;
  if (!reference.contains("grad_output") || departure != nullptr) return;
  network.clear_gradients();
  const Tensor<float>& grad_input = network.backward({wanted.shape(), values_of(reference.at("grad_output"))});
  expect_values(grad_input.values(), values_of(reference.at("grad_input")), "grad_input");
  expect_values(network.gradients()[0].weights, values_of(reference.at("grad_weights")), "grad_weights");
  ++compared.gradients;
}

/// All cases of a folder whose checkpoint is there too.
Compared compare_folder(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().string().ends_with(".ref.json")) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  Compared compared;
  for (const fs::path& path : paths) {
    const json reference = json::parse(testing::read_text(path));
    if (!reference.contains("checkpoint")) continue;  // dna.ref.json
    if (!fs::exists(folder / reference.at("checkpoint").get<std::string>())) continue;
    SCOPED_TRACE(path.filename().string());
    compare_case(folder, reference, compared);
  }
  return compared;
}

using Departures = std::map<std::string, std::size_t>;

TEST(LoomOutputs, OfTheCasesInTheRepository) {
  const Compared compared = compare_folder(testing::loom_folder());
  EXPECT_EQ(compared.outputs, 57u);
  EXPECT_EQ(compared.gradients, 12u);
  EXPECT_EQ(compared.departures, (Departures{{"D3", 1}, {"D21", 3}, {"D23", 1}, {"D24", 1}}));
}

TEST(LoomOutputs, OfTheWholeFolder) {
  if (!fs::exists(testing::shared_loom_folder())) GTEST_SKIP() << testing::missing_reference("loom");
  const Compared compared = compare_folder(testing::shared_loom_folder());
  EXPECT_EQ(compared.outputs, 336u);
  EXPECT_EQ(compared.gradients, 17u);
  EXPECT_EQ(compared.departures, (Departures{{"D3", 1}, {"D21", 48}, {"D23", 14}, {"D24", 1}}));
  EXPECT_EQ(compared.without_output, 1u);  // Gumbel
}

}  // namespace
}  // namespace imago
