#pragma once

// Layers against what PyTorch computed: torch/layers/NAME.safetensors of the reference data.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"
#include "layers/layer_functions.h"
#include "testing/reference.h"
#include "testing/safetensors.h"

namespace imago::testing {

class TorchLayer {
 public:
  explicit TorchLayer(const std::string& path) : file_(path), config_(file_.metadata("config")) {}

  const nlohmann::json& config() const noexcept { return config_; }
  bool has(const std::string& name) const { return file_.has(name); }
  /// "x", "y", "dy", "dx", "w.weight", "dw.weight", …
  std::vector<float> values(const std::string& name) const { return file_.values<float>(name); }
  Tensor<float> tensor(const std::string& name) const { return {Shape(file_.shape(name)), values(name)}; }

  /// Several tensors one after the other: the order in which a layer's array holds its parts.
  std::vector<float> concatenated(const std::vector<std::string>& names) const {
    std::vector<float> all;
    for (const std::string& name : names) {
      const std::vector<float> part = values(name);
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  SafetensorsFile file_;
  nlohmann::json config_;
};

/// The reference, if there is one: `if (!torch) GTEST_SKIP() << missing_torch_layer(name);`
inline std::optional<TorchLayer> find_torch_layer(const std::string& name) {
  const std::optional<std::string> found = find_reference("torch/layers/" + name + ".safetensors");
  return found ? std::optional<TorchLayer>(*found) : std::nullopt;
}

inline std::string missing_torch_layer(const std::string& name) {
  return missing_reference("torch/layers/" + name + ".safetensors");
}

/// |got - wanted| <= tolerance · the largest wanted value, for all entries.
inline void expect_close(std::span<const float> got, std::span<const float> wanted, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double largest = 0;
  for (const float value : wanted) largest = std::max(largest, std::abs(static_cast<double>(value)));
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), static_cast<double>(wanted[i]), tolerance * largest)
        << what << ", entry " << i;
  }
}

/// Runs `layer` forward (as a network that is used, and as one that is trained) and backward on the reference's x and
/// dy, and compares y, dx and the weight gradients. `weights` and `gradients` are in the order of the layer's array;
/// both empty for a layer without weights.
inline void expect_as_torch(Layer layer, const TorchLayer& torch, const std::vector<float>& weights,
                            const std::vector<float>& gradients, double tolerance = 1e-4) {
  if (!weights.empty()) {
    const WeightShape shape = weight_shape(layer.config);
    ASSERT_EQ(weights.size(), shape.count());
    layer.weights.emplace(shape).set_master(weights);
  }
  const Tensor<float> x = torch.tensor("x");
  for (const bool for_backward : {false, true}) {
    layers::Run run;
    run.for_backward = for_backward;
    layers::LayerState state;
    layers::forward_layer(layer, x, nullptr, state, run);
    const Tensor<float> y = torch.tensor("y");
    EXPECT_EQ(state.post.shape().to_string(), y.shape().to_string());
    expect_close(state.post.values(), y.values(), tolerance, for_backward ? "y of training" : "y");
    if (!for_backward) continue;
    LayerGradient gradient = layers::zero_gradient(layer);
    layers::backward_layer(layer, x, nullptr, torch.tensor("dy"), state, gradient, run);
    EXPECT_EQ(state.grad_input.shape().to_string(), x.shape().to_string());
    if (torch.has("dx")) expect_close(state.grad_input.values(), torch.values("dx"), tolerance, "dx");
    expect_close(gradient.weights, gradients, tolerance, "dw");
  }
}

}  // namespace imago::testing
