#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "imago/error.h"
#include "imago/train.h"
#include "layers/layer_functions.h"
#include "train/learned_scale.h"
#include "train/update.h"

namespace imago {

namespace {

/// One weight array of the network, and what the optimizer remembers of it. Moments are made when its first gradient
/// comes: layers that never get one cost nothing.
struct Slot {
  std::string name;
  std::size_t count = 0;
  std::vector<float> moments[2];
  std::vector<float> scale_moments[2];  // of one value each

  WeightStore* store = nullptr;     // these are of the current step
  std::span<const float> gradient;  // empty: nothing to do
  Scheme scheme;
  bool learns_scale = false;
};

/// Calls visit(name, values, their right number) for all that `kind` may remember of a slot, in a fixed order.
template <class AnySlot, class Visit>
void for_each_moment(AnySlot& slot, OptimizerKind kind, Visit&& visit) {
  for (int i = 0; i < moment_count(kind); ++i) {
    const std::string_view what = kind == OptimizerKind::momentum ? "velocity" : i == 0 ? "mean" : "square";
    visit(fmt::format("{}.{}", slot.name, what), slot.moments[i], slot.count);
    visit(fmt::format("{}.scale.{}", slot.name, what), slot.scale_moments[i], std::size_t{1});
  }
}

}  // namespace

struct Optimizer::State {
  Network* network;
  OptimizerOptions options;
  std::uint64_t steps = 0;
  std::vector<Slot> slots;  // empty until the first step: weights may come after the optimizer

  void make_slots() {
    slots.clear();
    const std::span<Layer> layers = network->layers();
    for (std::size_t i = 0; i < layers.size(); ++i) make_slots(layers[i], fmt::format("layers.{}", i));
  }

  void make_slots(Layer& layer, const std::string& path) {
    if (layer.weights) {
      slots.emplace_back();
      slots.back().name = path;
      slots.back().count = layer.weights->count();
    }
    std::size_t child = 0;
    layers::for_each_child(layer, [&](Layer& inner) { make_slots(inner, fmt::format("{}.{}", path, child++)); });
  }

  /// Finds the arrays of this step. Layers may have changed since the last one, by themselves even (Metacognition):
  /// moments of arrays of another size are dropped, and start again at 0.
  void attach() {
    if (try_attach()) return;
    std::vector<Slot> before = std::move(slots);
    make_slots();
    for (Slot& slot : slots) {
      const auto same = [&](const Slot& old) { return old.name == slot.name && old.count == slot.count; };
      const auto old = std::ranges::find_if(before, same);
      if (old == before.end()) continue;
      std::ranges::move(old->moments, slot.moments);
      std::ranges::move(old->scale_moments, slot.scale_moments);
    }
    [[maybe_unused]] const bool fits = try_attach();
    assert(fits);
  }

  bool try_attach() {
    std::size_t next = 0;
    bool fits = true;
    const std::span<Layer> grid = network->layers();
    const std::span<LayerGradient> gradients = network->gradients();
    for (std::size_t i = 0; i < grid.size(); ++i) {
      layers::for_each_gradient(grid[i], gradients[i], [&](Layer& layer, const LayerGradient& gradient) {
        if (!layer.weights || !fits) return;
        fits = next < slots.size() && slots[next].count == layer.weights->count();
        if (!fits) return;
        Slot& slot = slots[next++];
        slot.store = &*layer.weights;
        slot.gradient = gradient.weights;
        slot.scheme = layer.config.scheme();
        slot.learns_scale = imago::learns_scale(options, layer.config);
        // A layer that changed after the backward has no gradient until the next.
        if (slot.gradient.size() != slot.count) slot.gradient = {};
      });
    }
    return fits && next == slots.size();
  }

  /// What to multiply the gradient by, or nothing if it is not finite.
  std::optional<double> gradient_factor() const {
    double squares = 0;
    for (const Slot& slot : slots) {
      squares += clipped_square_sum(slot.gradient, options.clip_element);
      if (!std::isfinite(squares)) return std::nullopt;
    }
    const double norm = std::sqrt(squares), bound = static_cast<double>(options.clip_norm);
    return bound > 0 && norm > bound ? bound / norm : 1;
  }

  void apply(const UpdateRule& rule, Slot& slot) const {
    for (int i = 0; i < moment_count(options.kind); ++i) slot.moments[i].resize(slot.count);
    if (slot.learns_scale) learn_scale(rule, slot);  // before the master moves: it looks at how that was rounded
    const bool not_negative = slot.store->loses_negatives(slot.scheme);
    rule.apply(slot.store->edit_master(), slot.gradient, slot.moments[0], slot.moments[1], not_negative);
  }

  void learn_scale(const UpdateRule& rule, Slot& slot) const {
    const DType dtype = slot.scheme.format.dtype();
    if (start_scale(*slot.store, dtype)) return;  // this gradient belongs to the scale that was derived before
    for (int i = 0; i < moment_count(options.kind); ++i) slot.scale_moments[i].resize(1);
    const float slope = log_scale_slope(*slot.store, dtype, slot.gradient);
    float step = 0;  // seen from where it is, so that weight decay has nothing to pull at
    rule.apply({&step, 1}, {&slope, 1}, slot.scale_moments[0], slot.scale_moments[1], false);
    move_scale(*slot.store, dtype, step);
  }
};

Optimizer::Optimizer(Network& network, const OptimizerOptions& options) : state_(std::make_unique<State>()) {
  check_optimizer(options);
  state_->network = &network;
  state_->options = options;
}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

bool Optimizer::step(float rate) {
  if (!std::isfinite(rate)) throw UsageError(fmt::format("a learning rate of {}", rate));
  state_->attach();
  const std::optional<double> factor = state_->gradient_factor();
  if (!factor) return false;
  const UpdateRule rule(state_->options, ++state_->steps, static_cast<double>(rate), *factor);
  for (Slot& slot : state_->slots) {
    if (!slot.gradient.empty()) state_->apply(rule, slot);
  }
  return true;
}

std::uint64_t Optimizer::steps() const noexcept { return state_->steps; }

std::vector<Optimizer::Moment> Optimizer::save() const {
  state_->attach();  // moments of layers that changed since the step are of no use to anybody
  std::vector<Moment> saved;
  for (const Slot& slot : state_->slots) {
    for_each_moment(slot, state_->options.kind, [&](std::string name, const std::vector<float>& values, std::size_t) {
      if (!values.empty()) saved.push_back({std::move(name), values});
    });
  }
  return saved;
}

void Optimizer::restore(std::uint64_t steps, std::vector<Moment> moments) {
  const OptimizerKind kind = state_->options.kind;
  if (moments.empty() && steps != 0 && moment_count(kind) != 0) {
    throw UsageError(fmt::format("optimizer: {} steps without the moments that {} keeps", steps, name(kind)));
  }
  State restored{.network = state_->network, .options = state_->options, .steps = steps, .slots = {}};
  restored.make_slots();
  std::size_t used = 0;
  for (Slot& slot : restored.slots) {
    for_each_moment(slot, kind, [&](const std::string& name, std::vector<float>& values, std::size_t count) {
      if (used == moments.size() || moments[used].name != name) return;
      values = std::move(moments[used++].values);
      if (values.size() != count) {
        throw ShapeError(fmt::format("optimizer: moment {} has {} values, not {}", name, values.size(), count));
      }
    });
  }
  if (used != moments.size()) {
    throw UsageError(fmt::format("optimizer: moment {} belongs to no array of this network under {}",
                                 moments[used].name, name(kind)));
  }
  *state_ = std::move(restored);
}

}  // namespace imago
