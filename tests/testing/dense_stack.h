#pragma once

// Networks of Dense layers, and what rounding makes of them.

#include <span>
#include <utility>
#include <vector>

#include "imago/network.h"

namespace imago::testing {

/// Layers of these widths, the last one linear. Weights are as large as their fan-in allows: with the small ones of a
/// new network the layers stay nearly linear.
inline Network dense_stack(std::span<const int> widths, Activation activation, std::uint64_t seed) {
  std::vector<Layer> layers;
  for (std::size_t i = 1; i < widths.size(); ++i) {
    layers.push_back(dense(widths[i - 1], widths[i], i + 1 == widths.size() ? Activation::linear : activation));
  }
  Network network(std::move(layers));
  for (Layer& layer : network.layers()) layer.weights->he_randomize(seed++, layer.weights->cols());
  return network;
}

/// The same Dense layers with the same masters, all in `dtype`; scales are derived.
inline Network copy_in(const Network& network, DType dtype) {
  std::vector<Layer> layers;
  for (const Layer& layer : network.layers()) layers.push_back(with_dtype(Layer(layer.config), dtype));
  Network copy(std::move(layers));
  for (std::size_t i = 0; i < copy.layers().size(); ++i) {
    copy.layers()[i].weights->set_master(network.layers()[i].weights->master());
  }
  return copy;
}

/// Fixes the scales of a network in `dtype` where rounding costs the least squared error.
inline void fix_best_scales(Network& network, DType dtype) {
  Scheme best(dtype);
  best.calibrator = Calibrator::mse;
  for (Layer& layer : network.layers()) layer.weights->set_scale(dtype, layer.weights->morph(best)->scale());
}

}  // namespace imago::testing
