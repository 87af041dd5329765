#include "imago/network.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "network/network_state.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"
#include "weights/random.h"

namespace imago {

namespace {

std::size_t cell_count(int depth, int rows, int cols, int layers_per_cell) {
  std::size_t count = 1;
  for (const int extent : {depth, rows, cols, layers_per_cell}) {
    if (extent < 1) {
      throw UsageError(
          fmt::format("a network of {} x {} x {} x {} layers would be empty", depth, rows, cols, layers_per_cell));
    }
    count = checked_mul(count, static_cast<std::size_t>(extent), "layers of a network");
  }
  return count;
}

/// Fresh weights for the meta networks of a layer and of those inside it, which initialize_weights leaves alone.
void initialize_meta_networks(Layer& layer, std::uint64_t seed) {
  std::uint64_t index = 0;
  layers::for_each_layer(layer, [&](Layer& inner) {
    if (inner.meta_network != nullptr) inner.meta_network->initialize(derive_seed(seed, ~index));
    ++index;
  });
}

/// How many weights initialize will make.
std::size_t fresh_weights(std::span<const Layer> grid) {
  constexpr std::string_view kWhat = "the weights of a network";
  std::size_t count = 0;
  for (const Layer& layer : grid) {
    if (network::is_vacant(layer)) continue;
    layers::for_each_layer(layer, [&](const Layer& inner) {
      if (&inner != &layer && inner.config.is_remote_link) return;
      const WeightShape shape = weight_shape(inner.config);
      count = checked_add(count, checked_mul(shape.rows, shape.cols, kWhat), kWhat);
    });
  }
  return count;
}

void clear(LayerGradient& gradient) {
  kernels::clear(gradient.weights);
  for (LayerGradient& child : gradient.children) clear(child);
}

/// Gradients of a layer that changed its size start again at zero.
void fit(LayerGradient& gradient, const Layer& layer) {
  if (!network::fits(gradient, layer)) gradient = layers::zero_gradient(layer);
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
    layers::for_each_layer(layer, [&](const Layer& inner) {
      if (inner.weights) count += inner.weights->count();
      if (inner.meta_network != nullptr) count += inner.meta_network->parameters();
    });
  }
  return count;
}

void Network::set_run_seed(std::uint64_t seed) { state_->run_seed = seed; }

// ---- forward and backward

/// `copy`: memory for the input; `last`: the result of the last run.
template <class T>
const Tensor<T>& Network::State::run(const Tensor<T>& x, Tensor<T>& copy, const Tensor<T>*& last, bool for_backward) {
  can_go_back = false;
  const Tensor<T>* current = &x;
  // The caller may pass our own result back, which layers would overwrite while they read it.
  if (for_backward || &x == last) {
    copy.resize(x.shape());
    kernels::copy(x.values(), copy.values());
    current = &copy;
  }
  layers::Run run{this, for_backward, run_seed, observer, fast};
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (grid[i].config.is_disabled) continue;
    layers::forward_layer(grid[i], *current, nullptr, states[i], run);
    current = &states[i].values<T>().post;
  }
  run_seed = run.seed;
  if (current == &x) {  // no layer is enabled
    copy = x;
    current = &copy;
  }
  last = current;
  can_go_back = for_backward;
  return *last;
}

void Network::set_fast(bool fast) noexcept { state_->fast = fast; }

void Network::run_on(std::shared_ptr<Device> device) {
  if (device == nullptr || device->is_host()) {
    state_->device_runner.reset();
  } else if (state_->device_runner == nullptr || state_->device_runner->device() != device) {
    state_->device_runner = network::make_device_runner(std::move(device));
  }
}

const Tensor<float>& Network::forward(const Tensor<float>& x) {
  if (!state_->is_checked) check();
  state_->is_checked = true;
  if (state_->device_runner == nullptr || state_->observer != nullptr)
    return state_->run(x, state_->input, state_->result, false);
  layers::Run run{state_.get(), false, state_->run_seed, nullptr, state_->fast};
  state_->can_go_back = false;
  state_->device_runner->forward(state_->grid, state_->states, run, x, state_->device_result);
  state_->run_seed = run.seed;
  state_->result = &state_->device_result;
  return state_->device_result;
}

const Tensor<double>& Network::forward(const Tensor<double>& x) {
  if (!state_->is_checked) check();
  state_->is_checked = true;
  return state_->run(x, state_->wide_input, state_->wide_result, false);
}

bool Network::is_float64() const noexcept {
  std::optional<bool> found;
  for (const Layer& layer : state_->grid) {
    layers::for_each_layer(layer, [&](const Layer& inner) {
      if (!found && inner.weights && !inner.config.is_disabled) found = inner.config.dtype == DType::float64;
    });
  }
  return found.value_or(false);
}

const Tensor<float>& Network::forward_training(const Tensor<float>& x) {
  if (!state_->is_checked) check();
  state_->is_checked = true;
  return state_->run(x, state_->input, state_->result, true);
}

const Tensor<float>& Network::backward(const Tensor<float>& grad_output, bool input_gradient) {
  State& state = *state_;
  if (!state.can_go_back) throw UsageError("backward needs a forward_training before it");
  if (!(grad_output.shape() == state.result->shape())) {
    throw ShapeError(fmt::format("a gradient of shape {} for a result of shape {}", grad_output.shape().to_string(),
                                 state.result->shape().to_string()));
  }
  // All gradients before the first backward: a remote link adds to those of other layers.
  for (std::size_t i = 0; i < state.grid.size(); ++i) fit(state.gradients[i], state.grid[i]);

  layers::Run run{&state, true, state.run_seed};
  const Tensor<float>* grad = &grad_output;
  for (std::size_t i = state.grid.size(); i-- > 0;) {
    if (state.grid[i].config.is_disabled) continue;
    std::size_t before = i;
    while (before > 0 && state.grid[before - 1].config.is_disabled) --before;
    state.states[i].needs_grad_input = input_gradient || before > 0;
    const Tensor<float>& x = before == 0 ? state.input : state.states[before - 1].post;
    layers::backward_layer(state.grid[i], x, nullptr, *grad, state.states[i], state.gradients[i], run);
    grad = &state.states[i].grad_input;
  }
  if (grad == &grad_output) {
    state.states[0].grad_input = grad_output;
    grad = &state.states[0].grad_input;
  }
  return *grad;
}

std::span<LayerGradient> Network::gradients() noexcept { return state_->gradients; }

void Network::clear_gradients() {
  for (std::size_t i = 0; i < state_->grid.size(); ++i) {
    fit(state_->gradients[i], state_->grid[i]);
    clear(state_->gradients[i]);
  }
}

// ---- dtypes

namespace {

/// Layers with weights, those of meta networks included.
void collect(Network& network, std::vector<Layer*>& found) {
  for (Layer& layer : network.layers()) {
    layers::for_each_layer(layer, [&](Layer& inner) {
      if (inner.weights) found.push_back(&inner);
      if (inner.meta_network != nullptr) collect(*inner.meta_network, found);
    });
  }
}

}  // namespace

void morph_network(Network& network, DType dtype) {
  std::vector<Layer*> layers;
  collect(network, layers);
  // Versions first: a layer that cannot be morphed throws before any setting has changed.
  for (const Layer* layer : layers) {
    LayerConfig config = layer->config;
    config.dtype = dtype;  // types without scales ignore granularity and group
    layer->weights->morph(config.scheme());
  }
  for (Layer* layer : layers) layer->config.dtype = dtype;
}

std::vector<std::string> morph_network(Network& network, const Scheme& requested) {
  const Scheme scheme = checked_scheme(requested);
  struct Change {
    Layer* layer;
    Scheme scheme;
    std::shared_ptr<const Version> version;
  };
  std::vector<Layer*> layers;
  collect(network, layers);
  std::vector<std::string> notes;
  std::vector<Change> changes;  // versions first, as above
  for (Layer* layer : layers) {
    const WeightShape& shape = layer->weights->shape();
    const std::optional<Format> fitting = fitting_type(scheme.format, shape);
    if (fitting != scheme.format) {
      notes.push_back(fmt::format("{} {} {}: {}", layers::describe(*layer), fitting ? "becomes" : "stays",
                                  fitting.value_or(layer->config.dtype).name(),
                                  shape.matrix_count() == 0
                                      ? "it has no matrix"
                                      : fmt::format("{} fit no block of {}", rows_text(shape), scheme.format.name())));
    }
    if (!fitting) continue;
    Scheme own = scheme;
    own.format = *fitting;
    changes.push_back({layer, own, layer->weights->morph(own)});
  }
  for (const auto& [layer, own, version] : changes) {
    LayerConfig& config = layer->config;
    config.dtype = own.format;
    config.granularity = own.granularity;
    config.group = own.group;
    if (!own.format.has_scales() || checked_scheme(config.scheme()) == own) continue;
    layer->weights->set_scales(config.scheme(), version->scales(), version->zero_points());
    layer->weights->morph(config.scheme());
  }
  return notes;
}

Layer copy_layer(const Layer& layer) {
  Layer copy(layer.config);
  copy.at = layer.at;
  copy.rules = layer.rules;
  if (layer.weights) copy.weights = layer.weights->copy();
  for (const Layer& branch : layer.branches) copy.branches.push_back(copy_layer(branch));
  for (const Layer& inner : layer.sub_layers) copy.sub_layers.push_back(copy_layer(inner));
  if (layer.filter_gate) copy.filter_gate = std::make_unique<Layer>(copy_layer(*layer.filter_gate));
  if (layer.observed) copy.observed = std::make_unique<Layer>(copy_layer(*layer.observed));
  if (layer.meta_network) copy.meta_network = std::make_shared<Network>(layer.meta_network->copy());
  return copy;
}

Network Network::copy() const {
  Network copy(depth(), rows(), cols(), layers_per_cell());
  copy.id = id;
  copy.files = files;
  copy.set_run_seed(state_->run_seed);
  copy.set_fast(state_->fast);
  std::ranges::transform(layers(), copy.layers().begin(), copy_layer);
  copy.restore_memory(memory());
  return copy;
}

namespace network {

bool fits(const LayerGradient& gradient, const Layer& layer) {
  if (gradient.weights.size() != (layer.weights ? layer.weights->count() : 0)) return false;
  std::size_t index = 0;
  bool all = true;
  layers::for_each_child(layer, [&](const Layer& child) {
    all = all && index < gradient.children.size() && fits(gradient.children[index], child);
    ++index;
  });
  return all && index == gradient.children.size();
}

bool is_vacant(const Layer& layer) noexcept {
  const LayerConfig& config = layer.config;
  return config.is_disabled && config.type == LayerType::dense && config.input_height == 0 &&
         config.output_height == 0 && !layer.weights;
}

}  // namespace network

}  // namespace imago
