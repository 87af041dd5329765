// What layers remember from one forward to the next, as a list of numbers.
//
// A network: size of the history, its entries of 6 numbers each (float64 as their bits), the seed of random numbers,
// then its layers. A layer: its state, then its meta networks and those of the layers inside it, in the order of
// for_each_layer. A state: number of counters, the counters, number of children, the children. States are stored apart
// from layers, since those of remote links are in the container of the link.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "imago/error.h"
#include "layers/layer_functions.h"
#include "network/network_state.h"

namespace imago {

namespace {

using layers::LayerState;
using layers::TensorStats;

constexpr std::size_t kStatsNumbers = 6;
constexpr int kMaxDepth = 64;  // of nested layers; files allow 32

bool has_metacognition(std::span<const Layer> grid) {
  bool found = false;
  for (const Layer& layer : grid) {
    layers::for_each_layer(layer, [&](const Layer& inner) { found |= inner.config.type == LayerType::metacognition; });
  }
  return found;
}

void save_state(const LayerState& state, std::vector<std::uint64_t>& to) {
  to.push_back(state.counters.size());
  for (const int counter : state.counters) to.push_back(static_cast<std::uint64_t>(counter));
  to.push_back(state.children.size());
  for (const LayerState& child : state.children) save_state(child, to);
}

class Reader {
 public:
  explicit Reader(std::span<const std::uint64_t> numbers) : numbers_(numbers) {}

  std::uint64_t next() {
    if (numbers_.empty()) throw wrong("it ends too early");
    const std::uint64_t number = numbers_.front();
    numbers_ = numbers_.subspan(1);
    return number;
  }
  double real() { return std::bit_cast<double>(next()); }
  /// A count of items of at least `numbers` numbers each.
  std::size_t count(std::size_t numbers) {
    const std::uint64_t value = next();
    if (value > numbers_.size() / numbers) throw wrong("it ends too early");
    return static_cast<std::size_t>(value);
  }
  bool done() const noexcept { return numbers_.empty(); }

  /// A state that has only counters; the next forward makes the rest.
  LayerState state(int depth = 0) {
    if (depth == kMaxDepth) throw wrong("layers are nested too deep");
    LayerState read;
    read.counters.resize(count(1));
    for (int& counter : read.counters) {
      const std::uint64_t value = next();
      if (value > static_cast<std::uint64_t>(std::numeric_limits<int>::max())) throw wrong("a count is too large");
      counter = static_cast<int>(value);
    }
    read.children.resize(count(2));
    for (LayerState& child : read.children) child = state(depth + 1);
    return read;
  }

  static UsageError wrong(std::string_view what) {
    return UsageError(fmt::format("not the memory of this network: {}", what));
  }

 private:
  std::span<const std::uint64_t> numbers_;
};

}  // namespace

/// What is restored of one network. All networks are read before any changes.
struct Network::Memory {
  State* network = nullptr;
  std::deque<TensorStats> history;
  std::uint64_t run_seed = 0;
  std::vector<LayerState> layers;

  static void save(const Network& network, std::vector<std::uint64_t>& to) {
    const State& state = *network.state_;
    to.push_back(state.stats.size());
    for (const TensorStats& stats : state.stats) {
      for (const double figure : {stats.average, stats.deviation, stats.maximum, stats.minimum}) {
        to.push_back(std::bit_cast<std::uint64_t>(figure));
      }
      to.push_back(stats.active);
      to.push_back(stats.total);
    }
    to.push_back(state.run_seed);
    for (std::size_t i = 0; i < state.grid.size(); ++i) {
      save_state(state.states[i], to);
      layers::for_each_layer(state.grid[i], [&](const Layer& inner) {
        if (inner.meta_network != nullptr) save(*inner.meta_network, to);
      });
    }
  }

  static void read(Network& network, Reader& from, std::vector<Memory>& all) {
    Memory memory{.network = network.state_.get(), .history = {}, .layers = {}};
    const std::size_t entries = from.count(kStatsNumbers);
    if (entries > layers::kMetaHistory) throw Reader::wrong("its history is too long");
    for (std::size_t i = 0; i < entries; ++i) {
      TensorStats& stats = memory.history.emplace_back();
      for (double* figure : {&stats.average, &stats.deviation, &stats.maximum, &stats.minimum}) *figure = from.real();
      stats.active = static_cast<std::size_t>(from.next());
      stats.total = static_cast<std::size_t>(from.next());
    }
    memory.run_seed = from.next();
    for (Layer& layer : memory.network->grid) {
      memory.layers.push_back(from.state());
      layers::for_each_layer(layer, [&](Layer& inner) {
        if (inner.meta_network != nullptr) read(*inner.meta_network, from, all);
      });
    }
    all.push_back(std::move(memory));
  }

  void restore() {
    network->stats = std::move(history);
    network->run_seed = run_seed;
    network->can_go_back = false;
    std::ranges::move(layers, network->states.begin());
  }
};

std::vector<std::uint64_t> Network::memory() const {
  std::vector<std::uint64_t> numbers;
  if (has_metacognition(state_->grid)) Memory::save(*this, numbers);
  return numbers;
}

void Network::restore_memory(std::span<const std::uint64_t> memory) {
  if (memory.empty()) return;
  std::vector<Memory> all;
  Reader reader(memory);
  Memory::read(*this, reader, all);
  if (!reader.done()) throw Reader::wrong("it is too long");
  for (Memory& one : all) one.restore();
}

}  // namespace imago
