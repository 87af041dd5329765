#include "train/best_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "layers/layer_functions.h"
#include "train/learned_scale.h"

namespace imago {

namespace {

/// Calls visit(name, layer) for every layer with weights. The name says what the layer is, so that one that became
/// another is told from it.
template <class AnyNetwork, class Visit>
void for_each_weighted(AnyNetwork& network, Visit&& visit) {
  std::size_t index = 0;
  for (auto& grid_layer : network.layers()) {
    layers::for_each_layer(grid_layer, [&](auto& layer) {
      if (!layer.weights) return;
      visit(fmt::format("{}.{}.{}", index++, name(layer.config.type), layer.config.dtype.name()), layer);
    });
  }
}

}  // namespace

std::vector<Optimizer::Moment> copy_weights(const Network& network) {
  std::vector<Optimizer::Moment> copies;
  for_each_weighted(network, [&](const std::string& name, const Layer& layer) {
    const std::span<const float> master = layer.weights->master();
    copies.push_back({name, {master.begin(), master.end()}});
    if (!has_learnable_scale(layer.config)) return;
    const std::optional<float> scale = layer.weights->explicit_scale(layer.config.dtype.dtype());
    if (!scale) return;
    copies.push_back({name + ".scale", {*scale}});
    const float zero_point = layer.weights->zero_point(layer.config.dtype.dtype());
    if (zero_point != 0) copies.push_back({name + ".zero_point", {zero_point}});
  });
  return copies;
}

bool restore_weights(Network& network, std::span<const Optimizer::Moment> weights) {
  const auto walk = [&](bool apply) {
    std::size_t used = 0;
    bool fits = true;
    for_each_weighted(network, [&](const std::string& name, Layer& layer) {
      const auto next = [&](const std::string& wanted, std::size_t count) -> const Optimizer::Moment* {
        const bool found =
            used < weights.size() && weights[used].name == wanted && weights[used].values.size() == count;
        return found ? &weights[used++] : nullptr;
      };
      const Optimizer::Moment* master = next(name, layer.weights->count());
      const Optimizer::Moment* scale = next(name + ".scale", 1);
      const Optimizer::Moment* zero_point = scale == nullptr ? nullptr : next(name + ".zero_point", 1);
      fits = fits && master != nullptr;
      if (!apply) return;
      layer.weights->set_master(master->values);
      if (scale == nullptr) return;
      layer.weights->set_scale(layer.config.dtype.dtype(), scale->values.front(),
                               zero_point == nullptr ? 0 : zero_point->values.front());
    });
    return fits && used == weights.size();
  };
  return walk(false) && walk(true);
}

bool has_finite_weights(const Network& network) {
  bool finite = true;
  for_each_weighted(network, [&](const std::string&, const Layer& layer) {
    finite = finite && std::ranges::all_of(layer.weights->master(), [](float weight) { return std::isfinite(weight); });
  });
  return finite;
}

}  // namespace imago
