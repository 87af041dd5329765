// What the layers of a network see, against what the layers in front of them give.

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "guided/calibration.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

Network two_layers() {
  std::vector<Layer> layers;
  layers.push_back(dense(6, 5, Activation::relu));
  layers.push_back(dense(5, 3, Activation::linear));
  return Network(std::move(layers), 7);
}

Dataset some_data(std::size_t count) {
  Dataset data{Tensor<float>(Shape{count, 6}), Tensor<float>(Shape{count, 3})};
  const std::vector<float> values = testing::random_values(count * 6, 3);
  std::ranges::copy(values, data.x.values().begin());
  return data;
}

TEST(CalibrateNetwork, SumsTheInputsOfEachDenseLayer) {
  const testing::TempDir folder;
  const std::string model = folder.path() / "net.json", out = folder.path() / "c.gguf";
  Network network = two_layers();
  save_network(network, model);
  const Dataset data = some_data(11);
  const CalibrateReport report = calibrate_network(model, data, "data", out, {.products = true, .batch = 4});
  EXPECT_EQ(report.rows, 11u);
  EXPECT_EQ(report.matrices, 2u);
  const guided::Calibration got = guided::Calibration::read(out);
  const std::span<const float> weights = network.layers()[0].weights->master();
  std::vector<double> second(5), first(6);
  double product = 0;  // of columns 0 and 4 of the second layer
  for (std::size_t row = 0; row < 11; ++row) {
    double hidden[5] = {};
    for (std::size_t j = 0; j < 5; ++j) {
      for (std::size_t i = 0; i < 6; ++i) {
        hidden[j] += static_cast<double>(weights[j * 6 + i]) * static_cast<double>(data.x.values()[row * 6 + i]);
      }
      hidden[j] = std::max(hidden[j], 0.0);
      second[j] += hidden[j] * hidden[j] / 11;
    }
    product += hidden[0] * hidden[4] / 11;
    for (std::size_t i = 0; i < 6; ++i) first[i] += std::pow(static_cast<double>(data.x.values()[row * 6 + i]), 2) / 11;
  }
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(got.require("layers.0", 0, 6).second_moments[i], first[i], 1e-6);
  }
  for (std::size_t j = 0; j < 5; ++j) {
    EXPECT_NEAR(got.require("layers.1", 0, 5).second_moments[j], second[j], 1e-6);
  }
  EXPECT_NEAR(got.find("layers.1")->products[4], product, 1e-6);
}

TEST(CalibrateNetwork, RefusesDataWithoutExamplesAndNetworksWithoutMatrices) {
  const testing::TempDir folder;
  const std::string model = folder.path() / "net.json", out = folder.path() / "c.gguf";
  save_network(two_layers(), model);
  EXPECT_THROW(calibrate_network(model, some_data(0), "data", out), UsageError);
  std::vector<Layer> layers(1);
  layers[0].config.type = LayerType::softmax;
  save_network(Network(std::move(layers), 1), model);
  EXPECT_THROW(calibrate_network(model, some_data(3), "data", out), UnsupportedError);
}

}  // namespace
}  // namespace imago
