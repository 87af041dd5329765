#pragma once

// The types of a network's layers, for as long as others are tried.

#include <span>
#include <string>
#include <vector>

#include "imago/files.h"
#include "imago/layer.h"
#include "quant/packed_array.h"

namespace imago::precision {

/// The layers of a network that have weights. Gives them their types back when it goes; the network must outlive it.
class LayerTypes {
 public:
  struct Entry {
    std::string path;
    Layer* layer;
    LayerConfig before;
  };

  explicit LayerTypes(Network& network) {
    for (const NamedLayer& named : named_layers(network)) {
      // The network is ours to change; named_layers only reads.
      Layer& layer = const_cast<Layer&>(*named.layer);  // NOLINT
      if (layer.weights) entries_.push_back({named.path, &layer, layer.config});
    }
  }
  LayerTypes(const LayerTypes&) = delete;
  LayerTypes& operator=(const LayerTypes&) = delete;
  ~LayerTypes() { restore(); }

  std::span<const Entry> all() const noexcept { return entries_; }

  /// As a conversion does: one scale per row where groups do not fit; where blocks do not, smaller ones or the own
  /// type.
  static void set(const Entry& entry, Format type, Granularity granularity = Granularity::tensor, int group = 0) {
    LayerConfig& config = entry.layer->config = entry.before;
    config.dtype = fitting_type(type, entry.layer->weights->shape()).value_or(config.dtype);
    if (!type.has_scales()) return;
    const bool groups = granularity == Granularity::group;
    const bool fits = !groups || entry.layer->weights->cols() % static_cast<std::size_t>(group) == 0;
    config.granularity = fits ? granularity : Granularity::row;
    config.group = groups && fits ? group : 0;
  }
  void restore() const {
    for (const Entry& entry : entries_) entry.layer->config = entry.before;
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace imago::precision
