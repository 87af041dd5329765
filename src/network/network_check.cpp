// Checks a network before it runs: settings must make valid layers, and remote links must lead to layers and not in a
// circle. Networks come from files, so the depth and number of the layers that would run are bounded.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "layers/layer_functions.h"
#include "network/network_state.h"
#include "quant/packed_array.h"

namespace imago {

namespace {

// Each level costs a few stack frames of forward and backward.
constexpr std::size_t kMaxDepth = 100;
// Links may share links: n layers that each use the one before twice make 2^n. Real networks have far fewer.
constexpr std::size_t kMaxLayers = 1'000'000;

std::string place(const Coordinates& at) { return fmt::format("({},{},{},{})", at.z, at.y, at.x, at.l); }

/// What runs when a layer runs.
struct Extent {
  std::size_t depth = 1;   // layers inside each other
  std::size_t layers = 1;  // in all
};

class Check {
 public:
  explicit Check(const Network& network) : network_(network), found_(network.layers().size()) {}

  void run() {
    for (std::size_t i = 0; i < found_.size(); ++i) {
      const Layer& layer = network_.layers()[i];
      if (network::is_vacant(layer)) continue;
      if (layer.config.is_remote_link) target_of(layer, layer);  // the step mesh follows it
      measure_grid_layer(i);
    }
  }

 private:
  std::size_t target_of(const Layer& owner, const Layer& link) const {
    try {
      return network_.index(link.config.target);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: its remote link leads nowhere; {}", layers::describe(owner), error.what()));
    }
  }

  Extent measure_grid_layer(std::size_t index) {
    const Layer& layer = network_.layers()[index];
    std::optional<Extent>& found = found_[index];
    if (found) return *found;
    const auto begun = std::ranges::find(trail_, index);
    if (begun != trail_.end()) throw_cycle(std::span(begun, trail_.end()));
    if (trail_.size() >= kMaxDepth) throw_too_deep(layer);
    trail_.push_back(index);
    found = measure(layer, layer, 1);
    trail_.pop_back();
    return *found;
  }

  /// `owner` is the grid layer that `layer` is or is inside of.
  Extent measure(const Layer& owner, const Layer& layer, std::size_t level) {
    if (level > kMaxDepth) throw_too_deep(owner);
    check_settings(owner, layer);
    Extent extent;
    layers::for_each_child(layer, [&](const Layer& child) {
      const Extent inner =
          is_link(layer, child) ? measure_grid_layer(target_of(owner, child)) : measure(owner, child, level + 1);
      extent.depth = std::max(extent.depth, inner.depth + 1);
      extent.layers += inner.layers;
    });
    if (extent.depth > kMaxDepth) throw_too_deep(owner);
    if (extent.layers > kMaxLayers) {
      throw UsageError(
          fmt::format("{}: its remote links expand to more than {} layers", layers::describe(owner), kMaxLayers));
    }
    return extent;
  }

  static bool is_link(const Layer& container, const Layer& child) {
    if (!child.config.is_remote_link) return false;
    if (&child == container.filter_gate.get() || &child == container.observed.get()) {
      throw UsageError(
          fmt::format("{}: only branches and sub-layers can be remote links, not filter gates and observed layers",
                      layers::describe(container)));
    }
    return true;
  }

  static void check_settings(const Layer& owner, const Layer& layer) {
    WeightShape shape;
    try {
      shape = weight_shape(layer.config);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("{}: {}", layers::describe(owner), error.what()));
    }
    if (layer.weights && layer.weights->count() != shape.count()) {
      throw ShapeError(fmt::format("{}: {} with {} weights, but its settings ask for {}", layers::describe(owner),
                                   name(layer.config.type), layer.weights->count(), shape.count()));
    }
    if (shape.count() != 0) {
      try {
        scale_layout(checked_scheme(layer.config.scheme()), shape);
      } catch (const ShapeError& error) {
        throw ShapeError(fmt::format("{}: {}", layers::describe(owner), error.what()));
      }
    }
    if (!layer.branches.empty() && layer.config.combine_mode == "filter" && layer.filter_gate == nullptr) {
      throw UsageError(fmt::format("{}: combine_mode 'filter' needs a filter gate", layers::describe(owner)));
    }
    if (layer.meta_network != nullptr) layer.meta_network->check();
  }

  [[noreturn]] void throw_cycle(std::span<const std::size_t> circle) const {
    std::string path;
    for (const std::size_t step : circle) path += place(network_.layers()[step].at) + " -> ";
    throw UsageError(
        fmt::format("remote links run in a circle: {}{}", path, place(network_.layers()[circle.front()].at)));
  }

  [[noreturn]] static void throw_too_deep(const Layer& layer) {
    throw UsageError(fmt::format("{}: layers are nested more than {} deep", layers::describe(layer), kMaxDepth));
  }

  const Network& network_;
  std::vector<std::optional<Extent>> found_;  // none: not measured yet
  std::vector<std::size_t> trail_;            // grid layers whose measuring has begun
};

}  // namespace

void Network::check() const { Check(*this).run(); }

}  // namespace imago
