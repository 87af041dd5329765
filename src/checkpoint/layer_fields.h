#pragma once

// The keys of a layer object (spec/checkpoint.md §2 and §2.1): names, order and where each value lives, once, for
// readers and writers alike.

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
enum class WeightKey : std::uint8_t { weights, native, scale, scales };

/// A coordinate of the target of a remote link.
struct TargetField {
  int Coordinates::*member;
};

using NetworkPointer = decltype(Layer::meta_network);

using FieldPlace =
    std::variant<int Coordinates::*, LayerType LayerConfig::*, Activation LayerConfig::*, DType LayerConfig::*,
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

}  // namespace imago::checkpoint
