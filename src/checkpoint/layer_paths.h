#pragma once

// Names of layers in files (spec/checkpoint.md §9): `layers.0.sequential_layers.1`.

#include <cstddef>
#include <string>

#include "checkpoint/layer_fields.h"
#include "imago/network.h"

namespace imago::checkpoint {

/// Calls visit(path, layer) for `layer` and every layer inside it: the layer, its branches, its gate, its sub-layers,
/// its observed layer, its meta network; depth first.
template <class AnyLayer, class Visit>
void for_each_path(AnyLayer& layer, const std::string& path, Visit& visit);

/// As above, for all layers of a network.
template <class AnyNetwork, class Visit>
void for_each_path(AnyNetwork& network, Visit&& visit, const std::string& parent = {}) {
  std::size_t index = 0;
  for (auto& layer : network.layers()) for_each_path(layer, child_path(parent, "layers", index++), visit);
}

template <class AnyLayer, class Visit>
void for_each_path(AnyLayer& layer, const std::string& path, Visit& visit) {
  visit(path, layer);
  std::size_t index = 0;
  for (auto& branch : layer.branches) for_each_path(branch, child_path(path, "parallel_branches", index++), visit);
  if (layer.filter_gate) for_each_path(*layer.filter_gate, path + ".filter_gate", visit);
  index = 0;
  for (auto& sub_layer : layer.sub_layers) {
    for_each_path(sub_layer, child_path(path, "sequential_layers", index++), visit);
  }
  if (layer.observed) for_each_path(*layer.observed, path + ".meta_observed_layer", visit);
  if (layer.meta_network) {
    auto& network = *layer.meta_network;
    index = 0;
    for (auto& inner : network.layers()) {
      for_each_path(inner, child_path(path + ".meta_network", "layers", index++), visit);
    }
  }
}

}  // namespace imago::checkpoint
