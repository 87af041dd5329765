#pragma once

// The keys of a layer object (docs/formats/checkpoint.md): names, order and where each value lives, once, for
// readers and writers alike.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "imago/layer.h"
#include "imago/network.h"

namespace imago::checkpoint {

/// The keys that describe the weights together: none of them means anything alone.
enum class WeightKey : std::uint8_t { weights, native, scale, scales, zero_point, zeros, block_format, blocks };

/// A coordinate of the target of a remote link.
struct TargetField {
  int Coordinates::*member;
};

using NetworkPointer = decltype(Layer::meta_network);

using FieldPlace =
    std::variant<int Coordinates::*, LayerType LayerConfig::*, Activation LayerConfig::*, Format LayerConfig::*,
                 SoftmaxType LayerConfig::*, Granularity LayerConfig::*, int LayerConfig::*, double LayerConfig::*,
                 bool LayerConfig::*, std::string LayerConfig::*, std::vector<float> LayerConfig::*,
                 std::vector<bool> LayerConfig::*, std::vector<int> LayerConfig::*, TargetField, WeightKey,
                 std::vector<Layer> Layer::*, std::unique_ptr<Layer> Layer::*, NetworkPointer Layer::*,
                 std::vector<MetaRule> Layer::*>;

struct LayerField {
  std::string_view key;
  FieldPlace place;
};

/// In the order in which files have them.
std::span<const LayerField> layer_fields() noexcept;

/// Null for a key that layers do not have.
const LayerField* find_layer_field(std::string_view key) noexcept;

using RulePlace = std::variant<int MetaRule::*, double MetaRule::*, float MetaRule::*, bool MetaRule::*>;
struct RuleField {
  std::string_view key;
  RulePlace place;
};

/// Keys of a rule object, all of which are always written.
std::span<const RuleField> rule_fields() noexcept;

/// "layers.3" of a grid layer, "layers.3.parallel_branches.0" of one inside it.
std::string child_path(std::string_view parent, std::string_view key, std::size_t index);

// Names of layers in files (docs/formats/entity.md): `layers.0.sequential_layers.1`.

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
  if (layer.meta_network) for_each_path(*layer.meta_network, visit, path + ".meta_network");
}

}  // namespace imago::checkpoint
