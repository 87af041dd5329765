// Metacognition: watches another layer. Rules may change that layer, or a network of its own may change the result.
// children[0]: the observed layer. scratch[0]: the input of the meta network. rounded: noise. counters: forwards since
// each rule fired.

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/meta_rules.h"
#include "weights/random.h"

namespace imago::layers {

namespace {

constexpr int kFirstCommand = 70;  // smaller codes called methods of the original engine by name

template <class T>
void run_observed(Layer& layer, const Tensor<T>& x, LayerState& state, Run& run) {
  Tensor<T>& post = state.values<T>().post;
  if (layer.observed == nullptr) {
    post = x;
    return;
  }
  state.children.resize(1);
  forward_layer(*layer.observed, x, nullptr, state.children[0], run);
  post = state.children[0].values<T>().post;
}

/// True if a command changed a layer.
template <class T>
bool apply_rules(Layer& layer, const Tensor<T>& x, const TensorStats& input, LayerState& state, Run& run) {
  const Tensor<T>& post = state.values<T>().post;
  const Observation seen{input, stats_of(post), run.grid == nullptr ? nullptr : &run.grid->history()};
  state.counters.resize(layer.rules.size());
  bool changed = false;
  for (std::size_t i = 0; i < layer.rules.size(); ++i) {
    const MetaRule& rule = layer.rules[i];
    int& forwards = state.counters[i];
    if (forwards < rule.cooldown || !condition_holds(rule, seen)) {
      if (forwards < std::numeric_limits<int>::max()) ++forwards;
      continue;
    }
    forwards = 0;
    const int command = int_of(rule.command);
    if (rule.self_only) {
      changed |= execute_command(*layer.observed, command, rule.param, {&x.shape(), &post.shape()}, run);
    } else {
      changed |= execute_command(command_target(layer, rule.param, run), command, rule.param, {}, run);
    }
  }
  return changed;
}

template <class T>
void append_stats(const TensorStats& stats, T* to) {
  to[0] = static_cast<T>(stats.average);
  to[1] = static_cast<T>(stats.deviation);
  to[2] = static_cast<T>(stats.maximum);
  to[3] = static_cast<T>(stats.minimum);
  to[4] = static_cast<T>(stats.active);
}

/// The meta network's input by `meta_source`; all but the plain input end with a 1.
template <class T>
const Tensor<T>& meta_input(const Layer& layer, const Tensor<T>& x, const TensorStats& input, LayerState& state,
                            const Run& run) {
  constexpr std::size_t kStats = 5, kEntries = 10;
  const std::string& source = layer.config.meta_source;
  Tensor<T>& values = state.values<T>().scratch[0];
  if (source == "stats") {
    resize_to(values, {1, kStats + 1});
    append_stats(input, values.values().data());
  } else if (source == "history") {
    resize_to(values, {1, kEntries * kStats + 1});
    std::ranges::fill(values.values(), T{0});
    if (run.grid != nullptr) {
      const std::deque<TensorStats>& history = run.grid->history();
      const std::size_t count = std::min(kEntries, history.size());
      for (std::size_t i = 0; i < count; ++i) {
        append_stats(history[history.size() - count + i], values.values().data() + i * kStats);
      }
    }
  } else if (source == "activations") {
    resize_to(values, {1, x.size() + 1});
    std::ranges::copy(x.values(), values.values().begin());
  } else {
    return x;
  }
  values.values().back() = 1;
  return values;
}

/// Triples of command, column and parameter. True if a command changed a layer.
template <class T>
bool obey(const Layer& layer, std::span<const T> triples, Run& run) {
  bool changed = false;
  for (; triples.size() >= 3; triples = triples.subspan(3)) {
    const int command = int_of(static_cast<float>(triples[0]));
    if (command < kFirstCommand) continue;
    changed |= execute_command(command_target(layer, static_cast<float>(triples[1]), run), command,
                               static_cast<float>(triples[2]), {}, run);
  }
  return changed;
}

template <class T>
void apply_meta_network(Layer& layer, const Tensor<T>& x, const TensorStats& input, LayerState& state, Run& run) {
  LayerValues<T>& own = state.values<T>();
  own.scratch.resize(1);
  if (run.grid == nullptr) throw UsageError(describe(layer) + ": a meta network runs only inside a network");
  const Tensor<T>& question = meta_input(layer, x, input, state, run);
  const std::span<const T> answer = run.grid->run_meta_network(*layer.meta_network, question).values();
  if (answer.empty()) throw ShapeError(describe(layer) + ": its meta network gives nothing");
  const std::string& effect = layer.config.meta_effect;
  const std::span<T> post = own.post.values();
  if (effect == "gate") {
    kernels::scale(post, static_cast<T>(1 / (1 + std::exp(-static_cast<double>(answer[0])))));
  } else if (effect == "noise") {
    state.rounded.resize(own.post.shape());
    run.seed = derive_seed(run.seed, 0);
    fill_uniform(state.rounded.values(), run.seed, 1);
    const T factor = std::max(T{0}, answer[0]);
    for (std::size_t i = 0; i < post.size(); ++i) post[i] += factor * static_cast<T>(state.rounded[i]);
  } else if (effect == "intervention") {
    if (!(answer[0] > T{0.5})) return;
    const std::span<const T> values = answer.subspan(1, std::min(answer.size() - 1, post.size()));
    std::ranges::fill(std::ranges::copy(values, post.begin()).out, post.end(), T{0});
  } else if (effect == "autonomous_command") {
    if (obey(layer, answer, run)) run_observed(layer, x, state, run);
  }
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const TensorStats input = stats_of(x);
  remember_input(input, run);
  run_observed(layer, x, state, run);
  if (layer.meta_network != nullptr) {
    apply_meta_network(layer, x, input, state, run);
  } else if (layer.observed != nullptr && apply_rules(layer, x, input, state, run)) {
    run_observed(layer, x, state, run);
  }
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run& run) {
  if (layer.observed == nullptr) {
    state.grad_input = grad_output;
    return;
  }
  LayerState& child = state.children[0];
  backward_layer(*layer.observed, x, nullptr, grad_output, child, gradient.children[0], run);
  state.grad_input = child.grad_input;
}

}  // namespace

const LayerFunctions kMetacognition{LayerType::metacognition, no_weights,      nullptr,
                                    forward<float>,           forward<double>, backward};

}  // namespace imago::layers
