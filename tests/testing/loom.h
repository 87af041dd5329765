#pragma once

// What the original computed: tests/data/loom/NAME.ref.json.

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"

namespace imago::testing {

inline nlohmann::json loom_reference(const std::string& name) {
  const std::string path = std::string(IMAGO_TEST_DATA) + "/loom/" + name + ".ref.json";
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  return nlohmann::json::parse(file);
}

inline Tensor<float> loom_tensor(const nlohmann::json& reference, const std::string& name) {
  return {Shape(reference.at(name + "_shape").get<std::vector<std::size_t>>()),
          reference.at(name).get<std::vector<float>>()};
}

/// Gives the layer the weights of entry `index` of the list "weights".
inline void set_loom_weights(Layer& layer, const nlohmann::json& reference, std::size_t index) {
  const auto master = reference.at("weights").at(index).at("master").get<std::vector<float>>();
  const WeightShape shape = weight_shape(layer.config);
  layer.weights.emplace(shape).set_master(master);
}

}  // namespace imago::testing
