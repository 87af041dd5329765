// The grid advanced in ticks. All layers of a tick read the outputs of the tick before, which are kept apart from the
// new ones, so that the order of the layers does not matter.

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "kernels/ops.h"
#include "network/network_state.h"

namespace imago {

namespace {

constexpr std::size_t kExternal = static_cast<std::size_t>(-1);

using Slot = std::optional<Tensor<float>>;  // empty until something arrives

/// What one layer did in one tick.
struct Record {
  std::size_t source = kExternal;  // whose output it read
  bool passed_on = false;          // disabled: its output was its input
  Tensor<float> input;
  layers::LayerState state;
};
using Tick = std::vector<std::optional<Record>>;  // one per layer; empty: nothing had arrived

/// The network's grid, with gradients of our own.
class MeshGrid final : public layers::Grid {
 public:
  MeshGrid(layers::Grid& grid, std::vector<LayerGradient>& gradients, const Network& network)
      : grid_(grid), gradients_(gradients), network_(network) {}

  Layer& layer(const Coordinates& at) override { return grid_.layer(at); }
  LayerGradient& gradient(const Coordinates& at) override { return gradients_[network_.index(at)]; }
  std::deque<layers::TensorStats>& history() override { return grid_.history(); }
  const Tensor<float>& run_meta_network(Network& network, const Tensor<float>& x) override {
    return grid_.run_meta_network(network, x);
  }
  const Tensor<double>& run_meta_network(Network& network, const Tensor<double>& x) override {
    return grid_.run_meta_network(network, x);
  }

 private:
  layers::Grid& grid_;
  std::vector<LayerGradient>& gradients_;
  const Network& network_;
};

void add_to(Slot& sum, const Tensor<float>& term) {
  if (!sum) {
    sum = term;
    return;
  }
  if (sum->size() != term.size()) {
    throw ShapeError(
        fmt::format("gradients of shapes {} and {} meet at one layer: its output changed its size between ticks",
                    sum->shape().to_string(), term.shape().to_string()));
  }
  kernels::add(term.values(), sum->values());
}

}  // namespace

struct StepMesh::State {
  Network& network;
  bool keep_history;
  Slot external;
  std::vector<Slot> out, next;
  std::vector<layers::LayerState> states;
  std::vector<Tick> history;
  std::uint64_t ticks = 0;

  std::size_t source_of(std::size_t index) const {
    const Layer& layer = std::as_const(network).layers()[index];
    if (layer.config.is_remote_link) return network.index(layer.config.target);
    return index == 0 ? kExternal : index - 1;
  }
};

StepMesh::StepMesh(Network& network, bool keep_history)
    : state_(new State{network, keep_history, {}, {}, {}, {}, {}, 0}) {
  const std::size_t count = std::as_const(network).layers().size();
  state_->out.resize(count);
  state_->next.resize(count);
  state_->states.resize(count);
}

StepMesh::StepMesh(StepMesh&&) noexcept = default;
StepMesh::~StepMesh() = default;

void StepMesh::set_input(Tensor<float> x) { state_->external = std::move(x); }

void StepMesh::step_forward() {
  State& state = *state_;
  Network::State& net = *state.network.state_;
  if (!net.is_checked) state.network.check();
  net.is_checked = true;

  layers::Run run{&net, state.keep_history, net.run_seed};
  Tick tick(state.keep_history ? state.out.size() : 0);
  for (std::size_t i = 0; i < state.out.size(); ++i) {
    const std::size_t source = state.source_of(i);
    const Slot& input = source == kExternal ? state.external : state.out[source];
    if (!input) {
      state.next[i] = state.out[i];
      continue;
    }
    Layer& layer = net.grid[i];
    const bool passes_on = layer.config.is_disabled;
    if (!passes_on) layers::forward_layer(layer, *input, nullptr, state.states[i], run);
    state.next[i] = passes_on ? *input : state.states[i].post;
    if (state.keep_history) tick[i] = Record{source, passes_on, *input, state.states[i]};
  }
  net.run_seed = run.seed;
  std::swap(state.out, state.next);
  ++state.ticks;
  if (state.keep_history) state.history.push_back(std::move(tick));
}

const Tensor<float>* StepMesh::output(std::size_t index) const {
  if (index >= state_->out.size()) {
    throw UsageError(fmt::format("no layer {}: the network has {}", index, state_->out.size()));
  }
  const Slot& slot = state_->out[index];
  return slot ? &*slot : nullptr;
}

std::uint64_t StepMesh::ticks() const noexcept { return state_->ticks; }

StepMesh::Gradients StepMesh::step_backward(const Tensor<float>& grad_output) {
  State& state = *state_;
  Network::State& net = *state.network.state_;
  if (!state.keep_history) throw UsageError("step_backward needs a mesh that keeps its history");
  const Slot& last = state.out.back();
  if (!last) throw UsageError(fmt::format("nothing has reached the last layer after {} ticks", state.ticks));
  if (!(last->shape() == grad_output.shape())) {
    throw ShapeError(fmt::format("a gradient of shape {} for an output of shape {}", grad_output.shape().to_string(),
                                 last->shape().to_string()));
  }

  Gradients gradients;
  for (const Layer& layer : net.grid) gradients.weights.push_back(layers::zero_gradient(layer));
  MeshGrid grid(net, gradients.weights, state.network);
  layers::Run run{&grid, true, net.run_seed};
  Slot input;
  std::vector<Slot> pending(state.out.size()), earlier(state.out.size());
  pending.back() = grad_output;
  for (std::size_t t = state.history.size(); t-- > 0;) {
    for (std::size_t i = 0; i < pending.size(); ++i) {
      std::optional<Record>& record = state.history[t][i];
      if (!pending[i] || !record) continue;
      Slot& to = record->source == kExternal ? input : earlier[record->source];
      if (record->passed_on) {
        add_to(to, *pending[i]);
      } else {
        layers::backward_layer(net.grid[i], record->input, nullptr, *pending[i], record->state, gradients.weights[i],
                               run);
        add_to(to, record->state.grad_input);
      }
    }
    std::swap(pending, earlier);
    for (Slot& slot : earlier) slot.reset();
  }
  if (!input) {  // the last layer was reached through links only
    if (state.external) gradients.input.resize(state.external->shape());
    std::ranges::fill(gradients.input.values(), 0.0f);
  } else {
    gradients.input = std::move(*input);
  }
  return gradients;
}

}  // namespace imago
