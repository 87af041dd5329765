#pragma once

// Networks computed in float64, one plain loop after the other, to hold the real ones against: results, and gradients
// by differences. Knows Dense, RMSNorm, Softmax, Residual and the containers; Metacognition is its observed layer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "imago/layer.h"
#include "imago/network.h"
#include "imago/numeric.h"
#include "testing/gradient_check.h"

namespace imago::testing {

struct Wide {
  std::size_t samples = 1;  ///< first extent
  std::vector<double> values;
  std::size_t width() const { return values.size() / samples; }
};

inline Wide widen(const Tensor<float>& x) {
  return {x.shape().rank() < 2 ? 1 : x.shape()[0], {x.values().begin(), x.values().end()}};
}

class WideNetwork {
 public:
  explicit WideNetwork(const Network& network) : network_(network) {
    for (const Layer& layer : network.layers()) copy_weights(layer);
  }

  /// To be moved by tests.
  std::vector<double>& weights(const Layer& layer) { return weights_.at(&layer); }

  Wide run(Wide x) const {
    for (const Layer& layer : network_.layers()) {
      if (!layer.config.is_disabled) x = run_layer(layer, x, nullptr);
    }
    return x;
  }

  Wide run_layer(const Layer& layer, const Wide& x, const Wide* skip) const {
    switch (static_cast<int>(layer.config.type)) {
      case static_cast<int>(LayerType::dense): return dense(layer, x);
      case static_cast<int>(LayerType::rms_norm): return norm(layer, x);
      case static_cast<int>(LayerType::softmax): return softmax(x, x.width());
      case static_cast<int>(LayerType::residual): return residual(x, skip);
      case static_cast<int>(LayerType::parallel): return parallel(layer, x);
      case static_cast<int>(LayerType::sequential): return sequential(layer, x);
      case static_cast<int>(LayerType::metacognition): return run_layer(*layer.observed, x, nullptr);
      default: throw std::logic_error("WideNetwork does not know " + std::string(name(layer.config.type)));
    }
  }

 private:
  void copy_weights(const Layer& layer) {
    if (layer.weights) {
      const std::vector<float> active = layer.weights->active(layer.config.scheme());
      weights_[&layer] = {active.begin(), active.end()};
    }
    for (const Layer& branch : layer.branches) copy_weights(branch);
    if (layer.filter_gate) copy_weights(*layer.filter_gate);
    for (const Layer& sub_layer : layer.sub_layers) copy_weights(sub_layer);
    if (layer.observed) copy_weights(*layer.observed);
  }

  const Layer& target(const Layer& child) const {
    return child.config.is_remote_link ? network_.layers()[network_.index(child.config.target)] : child;
  }

  static double activate(Activation activation, double z) {
    switch (activation) {
      case Activation::linear: return z;
      case Activation::relu: return std::max(z, 0.0);
      case Activation::tanh: return std::tanh(z);
      case Activation::sigmoid: return 1 / (1 + std::exp(-z));
      case Activation::silu:
      case Activation::gelu:
      case Activation::leaky_relu:
      case Activation::relu2: break;
    }
    throw std::logic_error("WideNetwork does not know this activation");
  }

  Wide dense(const Layer& layer, const Wide& x) const {
    const std::vector<double>& w = weights_.at(&layer);
    const auto inputs = static_cast<std::size_t>(layer.config.input_height);
    const auto outputs = static_cast<std::size_t>(layer.config.output_height);
    Wide y{x.samples, {}};
    for (std::size_t row = 0; row < x.values.size(); row += inputs) {
      for (std::size_t o = 0; o < outputs; ++o) {
        double z = 0;
        for (std::size_t i = 0; i < inputs; ++i) z += w[o * inputs + i] * x.values[row + i];
        y.values.push_back(activate(layer.config.activation, z));
      }
    }
    return y;
  }

  Wide norm(const Layer& layer, const Wide& x) const {
    const std::vector<double>& gamma = weights_.at(&layer);
    const double eps = layer.config.rms_norm_eps > 0 ? layer.config.rms_norm_eps : 1e-6;
    Wide y = x;
    for (std::size_t row = 0; row < x.values.size(); row += gamma.size()) {
      double squares = 0;
      for (std::size_t i = 0; i < gamma.size(); ++i) squares += x.values[row + i] * x.values[row + i];
      const double r = std::sqrt(squares / static_cast<double>(gamma.size()) + eps);
      for (std::size_t i = 0; i < gamma.size(); ++i) y.values[row + i] = x.values[row + i] / r * gamma[i];
    }
    return y;
  }

  static Wide softmax(Wide x, std::size_t width) {
    for (std::size_t row = 0; row < x.values.size(); row += width) {
      double sum = 0;
      for (std::size_t i = 0; i < width; ++i) sum += x.values[row + i] = std::exp(x.values[row + i]);
      for (std::size_t i = 0; i < width; ++i) x.values[row + i] /= sum;
    }
    return x;
  }

  static Wide residual(Wide x, const Wide* skip) {
    if (skip == nullptr || skip->values.size() != x.values.size()) return x;
    for (std::size_t i = 0; i < x.values.size(); ++i) x.values[i] += skip->values[i];
    return x;
  }

  Wide sequential(const Layer& layer, Wide x) const {
    Wide before;
    bool has_before = false;
    for (const Layer& child : layer.sub_layers) {
      if (child.config.is_disabled || target(child).config.is_disabled) continue;
      Wide y = run_layer(target(child), x, has_before ? &before : nullptr);
      before = std::exchange(x, std::move(y));
      has_before = true;
    }
    return x;
  }

  Wide parallel(const Layer& layer, const Wide& x) const {
    std::vector<Wide> parts;
    for (const Layer& child : layer.branches) {
      const bool off = child.config.is_disabled || target(child).config.is_disabled;
      parts.push_back(off ? x : run_layer(target(child), x, nullptr));
    }
    const std::string& mode = layer.config.combine_mode;
    Wide y{x.samples, {}};
    if (mode.empty() || mode == "concat" || mode == "grid_scatter") {
      for (std::size_t s = 0; s < x.samples; ++s) {
        for (const Wide& part : parts) {
          for (std::size_t i = 0; i < part.width(); ++i) y.values.push_back(part.values[s * part.width() + i]);
        }
      }
      return y;
    }
    Wide shares{x.samples, std::vector<double>(x.samples * parts.size(),
                                               mode == "avg" ? 1.0 / static_cast<double>(parts.size()) : 1.0)};
    if (mode == "filter") {
      const Wide logits = run_layer(*layer.filter_gate, x, nullptr);
      for (std::size_t s = 0; s < x.samples; ++s) {
        for (std::size_t i = 0; i < parts.size(); ++i) {
          shares.values[s * parts.size() + i] = logits.values[s * logits.width() + i];
        }
      }
      shares = softmax(shares, parts.size());
    }
    const std::size_t width = parts[0].width();
    y.values.resize(x.samples * width);
    for (std::size_t s = 0; s < x.samples; ++s) {
      for (std::size_t i = 0; i < parts.size(); ++i) {
        for (std::size_t k = 0; k < width; ++k) {
          y.values[s * width + k] += shares.values[s * parts.size() + i] * parts[i].values[s * width + k];
        }
      }
    }
    return y;
  }

  const Network& network_;
  std::map<const Layer*, std::vector<double>> weights_;
};

/// Weights large enough that nothing vanishes in rounding: uniform in [-range, range].
inline Network random_network(std::vector<Layer> layers, float range = 0.9f) {
  Network network(std::move(layers));
  std::uint64_t seed = 1000;
  for (Layer& layer : network.layers()) randomize_layer(layer, seed += 10, range);
  return network;
}

namespace detail {

template <class T>
void expect_close(std::span<const T> got, std::span<const double> wanted, double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double largest = 1e-3;
  for (const double value : wanted) largest = std::max(largest, std::abs(value));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(got[i]), wanted[i], tolerance * largest) << what << ", entry " << i;
  }
}

}  // namespace detail

inline void expect_close(std::span<const float> got, std::span<const double> wanted, double tolerance,
                         const std::string& what) {
  detail::expect_close(got, wanted, tolerance, what);
}
inline void expect_close(std::span<const double> got, std::span<const double> wanted, double tolerance,
                         const std::string& what) {
  detail::expect_close(got, wanted, tolerance, what);
}

/// d loss / d values[i] for all i, by central differences.
inline std::vector<double> differences(std::vector<double>& values, const std::function<double()>& loss) {
  constexpr double kStep = 1e-5;
  std::vector<double> result;
  for (double& value : values) {
    const double before = value;
    value = before + kStep;
    const double above = loss();
    value = before - kStep;
    const double below = loss();
    value = before;
    result.push_back((above - below) / (2 * kStep));
  }
  return result;
}

inline double weighted(const std::vector<double>& values, const Tensor<float>& r) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * static_cast<double>(r[i]);
  return sum;
}

/// Compares the gradients of all weight arrays with differences of `loss`, which reads `wide`.
inline void expect_weight_gradients(std::span<const Layer> layers, std::span<const LayerGradient> gradients,
                                    WideNetwork& wide, const std::function<double()>& loss) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const std::function<void(const Layer&, const LayerGradient&, const std::string&)> visit =
        [&](const Layer& layer, const LayerGradient& gradient, const std::string& path) {
          if (layer.weights) {
            expect_close(gradient.weights, differences(wide.weights(layer), loss), 2e-5, path);
          } else {
            EXPECT_TRUE(gradient.weights.empty()) << path;
          }
          std::size_t next = 0;
          const auto inner = [&](const Layer& child) {
            ASSERT_LT(next, gradient.children.size()) << path;
            visit(child, gradient.children[next], path + "." + std::to_string(next));
            ++next;
          };
          for (const Layer& branch : layer.branches) inner(branch);
          if (layer.filter_gate) inner(*layer.filter_gate);
          for (const Layer& sub_layer : layer.sub_layers) inner(sub_layer);
          if (layer.observed) inner(*layer.observed);
        };
    visit(layers[i], gradients[i], "layer " + std::to_string(i));
  }
}

/// The network with all weights in float64, run over doubles.
inline void check_wide_network(const Network& network, const Wide& x, const Shape& shape) {
  Network wide = network.copy();
  morph_network(wide, DType::float64);
  Tensor<double> input(shape);
  for (std::size_t i = 0; i < input.size(); ++i) input[i] = x.values[i] + 1e-9 / 3;
  const WideNetwork reference(wide);
  const Tensor<double>& got = wide.forward(input);
  const Wide wanted = reference.run({x.samples, {input.values().begin(), input.values().end()}});
  expect_close(got.values(), wanted.values, 1e-12, "forward over doubles");
}

/// Result, gradient of the input and of all weights of a network against float64.
inline void check_network(Network& network, const Tensor<float>& x) {
  WideNetwork wide(network);
  Wide wide_x = widen(x);
  const Wide wanted = wide.run(wide_x);
  check_wide_network(network, wide_x, x.shape());
  expect_close(network.forward(x).values(), wanted.values, 1e-5, "forward");
  const Tensor<float>& post = network.forward_training(x);
  expect_close(post.values(), wanted.values, 1e-5, "forward_training");

  const Tensor<float> r = random_tensor(post.shape(), 5);
  network.clear_gradients();
  const Tensor<float>& grad = network.backward(r);
  ASSERT_EQ(grad.shape(), x.shape());
  const auto loss = [&] { return weighted(wide.run(wide_x).values, r); };
  expect_close(grad.values(), differences(wide_x.values, loss), 2e-5, "input");
  expect_weight_gradients(std::as_const(network).layers(), network.gradients(), wide, loss);
}

}  // namespace imago::testing
