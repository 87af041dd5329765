#include "imago/network.h"

#include <fmt/format.h>

#include <utility>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/settings.h"
#include "network/network_state.h"
#include "network/walk.h"
#include "weights/random.h"

namespace imago {

namespace {

std::size_t cell_count(int depth, int rows, int cols, int layers_per_cell) {
  std::size_t count = 1;
  for (const int extent : {depth, rows, cols, layers_per_cell}) {
    if (extent < 1) {
      throw UsageError(
          fmt::format("a network of {} x {} x {} x {} layers has none", depth, rows, cols, layers_per_cell));
    }
    count = checked_mul(count, static_cast<std::size_t>(extent), "layers of a network");
  }
  return count;
}

/// Fresh weights for the meta networks of a layer and of those inside it, which initialize_weights leaves alone.
void initialize_meta_networks(Layer& layer, std::uint64_t seed) {
  std::uint64_t index = 0;
  network::for_each_layer(layer, [&](Layer& inner) {
    if (inner.meta_network != nullptr) inner.meta_network->initialize(derive_seed(seed, ~index));
    ++index;
  });
}

/// What initialize is going to make.
std::size_t fresh_weights(std::span<const Layer> grid) {
  constexpr std::string_view kWhat = "the weights of a network";
  std::size_t count = 0;
  for (const Layer& layer : grid) {
    if (network::is_vacant(layer)) continue;
    network::for_each_layer(layer, [&](const Layer& inner) {
      if (&inner != &layer && inner.config.is_remote_link) return;
      const WeightShape shape = weight_shape(inner.config);
      count = checked_add(count, checked_mul(shape.rows, shape.cols, kWhat), kWhat);
    });
  }
  return count;
}

}  // namespace

Network::Network(int depth, int rows, int cols, int layers_per_cell) : state_(std::make_unique<State>()) {
  const std::size_t count = cell_count(depth, rows, cols, layers_per_cell);
  state_->depth = depth;
  state_->rows = rows;
  state_->cols = cols;
  state_->layers_per_cell = layers_per_cell;
  state_->grid.resize(count);
  state_->states.resize(count);
  state_->gradients.resize(count);
  std::size_t index = 0;
  for (int z = 0; z < depth; ++z) {
    for (int y = 0; y < rows; ++y) {
      for (int x = 0; x < cols; ++x) {
        for (int l = 0; l < layers_per_cell; ++l) state_->grid[index++].at = {z, y, x, l};
      }
    }
  }
}

Network::Network(std::vector<Layer> layers, std::uint64_t seed)
    : Network(1, 1, 1, checked_cast<int>(layers.size(), "layers of a network")) {
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Coordinates at = state_->grid[i].at;
    state_->grid[i] = std::move(layers[i]);
    state_->grid[i].at = at;
  }
  check();
  initialize(seed);
}

Network::Network(Network&&) noexcept = default;
Network& Network::operator=(Network&&) noexcept = default;
Network::~Network() = default;

int Network::depth() const noexcept { return state_->depth; }
int Network::rows() const noexcept { return state_->rows; }
int Network::cols() const noexcept { return state_->cols; }
int Network::layers_per_cell() const noexcept { return state_->layers_per_cell; }

std::span<Layer> Network::layers() noexcept {
  state_->is_checked = false;
  return state_->grid;
}

std::span<const Layer> Network::layers() const noexcept { return state_->grid; }

std::size_t Network::State::index(const Coordinates& at) const {
  const auto inside = [](int place, int extent) { return place >= 0 && place < extent; };
  if (!inside(at.z, depth) || !inside(at.y, rows) || !inside(at.x, cols) || !inside(at.l, layers_per_cell)) {
    throw UsageError(fmt::format("no layer at ({},{},{},{}): the grid is {} x {} x {} x {}", at.z, at.y, at.x, at.l,
                                 depth, rows, cols, layers_per_cell));
  }
  const auto size = [](int extent) { return static_cast<std::size_t>(extent); };
  return ((size(at.z) * size(rows) + size(at.y)) * size(cols) + size(at.x)) * size(layers_per_cell) + size(at.l);
}

std::size_t Network::index(const Coordinates& at) const { return state_->index(at); }

Layer& Network::at(const Coordinates& at) {
  state_->is_checked = false;
  return state_->grid[state_->index(at)];
}

void Network::initialize(std::uint64_t seed) {
  state_->is_checked = false;
  layers::check_memory(fresh_weights(state_->grid), "the network", "weights");
  for (std::size_t i = 0; i < state_->grid.size(); ++i) {
    Layer& layer = state_->grid[i];
    if (network::is_vacant(layer)) continue;
    initialize_weights(layer, derive_seed(seed, i));
    initialize_meta_networks(layer, derive_seed(seed, i));
  }
}

std::size_t Network::parameters() const {
  std::size_t count = 0;
  for (const Layer& layer : state_->grid) {
    network::for_each_layer(layer, [&](const Layer& inner) {
      if (inner.weights) count += inner.weights->count();
      if (inner.meta_network != nullptr) count += inner.meta_network->parameters();
    });
  }
  return count;
}

void Network::set_run_seed(std::uint64_t seed) { state_->run_seed = seed; }

namespace network {

bool is_vacant(const Layer& layer) noexcept {
  const LayerConfig& config = layer.config;
  return config.is_disabled && config.type == LayerType::dense && config.input_height == 0 &&
         config.output_height == 0 && !layer.weights;
}

}  // namespace network

}  // namespace imago
