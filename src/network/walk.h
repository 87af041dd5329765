#pragma once

// Layers inside layers, in the order of LayerGradient::children.

#include "imago/layer.h"

namespace imago::network {

/// Calls `visit` for every layer directly inside `layer`; meta networks are networks of their own and left out.
template <class AnyLayer, class Visit>
void for_each_child(AnyLayer& layer, Visit&& visit) {
  for (auto& branch : layer.branches) visit(branch);
  if (layer.filter_gate != nullptr) visit(*layer.filter_gate);
  for (auto& sub_layer : layer.sub_layers) visit(sub_layer);
  if (layer.observed != nullptr) visit(*layer.observed);
}

/// Calls `visit` for `layer` and every layer inside it, outer ones first.
template <class AnyLayer, class Visit>
void for_each_layer(AnyLayer& layer, Visit&& visit) {
  visit(layer);
  for_each_child(layer, [&](auto& child) { for_each_layer(child, visit); });
}

}  // namespace imago::network
