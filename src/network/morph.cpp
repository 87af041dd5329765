#include <vector>

#include "imago/network.h"
#include "network/walk.h"

namespace imago {

namespace {

/// Layers with weights, those of meta networks included.
void collect(Network& network, std::vector<Layer*>& found) {
  for (Layer& layer : network.layers()) {
    network::for_each_layer(layer, [&](Layer& inner) {
      if (inner.weights) found.push_back(&inner);
      if (inner.meta_network != nullptr) collect(*inner.meta_network, found);
    });
  }
}

}  // namespace

void morph_network(Network& network, DType dtype) {
  std::vector<Layer*> layers;
  collect(network, layers);
  // Versions first: what cannot be morphed throws before any setting has changed.
  for (const Layer* layer : layers) {
    LayerConfig config = layer->config;
    config.dtype = dtype;  // which decides whether the other settings of a scheme count
    layer->weights->morph(config.scheme());
  }
  for (Layer* layer : layers) layer->config.dtype = dtype;
}

}  // namespace imago
