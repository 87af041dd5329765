#include "precision/report/layer_grid.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace imago::precision {

namespace {

/// Roles as GGUF names them, and shorter.
constexpr std::array<std::pair<std::string_view, std::string_view>, 13> kRoles = {{
    {"attn_qkv", "qkv"},
    {"attn_q", "q"},
    {"attn_k", "k"},
    {"attn_v", "v"},
    {"attn_output", "out"},
    {"ffn_gate_inp", "router"},
    {"ffn_gate", "gate"},
    {"ffn_gate_exps", "gates"},
    {"ffn_up", "up"},
    {"ffn_gate_up", "gate+up"},
    {"ffn_up_exps", "ups"},
    {"ffn_down", "down"},
    {"ffn_down_exps", "downs"},
}};

struct Place {
  std::size_t block;
  std::string_view role;
};

/// The first part of the name that is a number is the block, what follows is the role.
std::optional<Place> place_of(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    std::size_t block = 0;
    const auto [stop, error] = std::from_chars(name.data() + begin, name.data() + end, block);
    if (error == std::errc() && stop == name.data() + end) {
      if (end == name.size()) return std::nullopt;
      return Place{block, name.substr(end + 1)};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

std::size_t rank_of(std::string_view role) {
  const auto found = std::ranges::find(kRoles, role, [](const auto& entry) { return entry.first; });
  return static_cast<std::size_t>(found - kRoles.begin());
}

}  // namespace

LayerGrid make_layer_grid(std::span<const std::string> names) {
  LayerGrid grid;
  std::vector<std::string_view> roles;
  std::map<std::size_t, std::map<std::string_view, std::size_t>> blocks;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::optional<Place> place = place_of(names[i]);
    if (!place || !blocks[place->block].emplace(place->role, i).second) {
      grid.outside.push_back(i);
      continue;
    }
    if (std::ranges::find(roles, place->role) == roles.end()) roles.push_back(place->role);
  }
  std::ranges::stable_sort(roles, {}, rank_of);
  for (const std::string_view role : roles) {
    const std::size_t rank = rank_of(role);
    grid.columns.emplace_back(rank == kRoles.size() ? role : kRoles[rank].second);
  }
  for (const auto& [block, tensors] : blocks) {
    if (tensors.empty()) continue;
    LayerGrid::Row& row = grid.rows.emplace_back();
    row.block = block;
    for (const std::string_view role : roles) {
      const auto found = tensors.find(role);
      row.cells.push_back(found == tensors.end() ? LayerGrid::kNone : found->second);
    }
  }
  return grid;
}

}  // namespace imago::precision
