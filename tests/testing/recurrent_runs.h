#pragma once

// Short convolutions and scans of several sequences by the kernels of a GPU against those of the CPU. `Gpu` runs them:
// on a device, or on the host lane by lane. It has up(vector), whose result has data() and values(); an operation of
// that name for each of kernels/cuda/recurrent.h; and finish(), after which results can be read.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/recurrent.h"
#include "kernels/ops.h"
#include "kernels/recurrent.h"
#include "testing/random_values.h"

namespace imago::testing {

inline void expect_close(const std::vector<float>& got, const std::vector<float>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const float bound = 1e-4f * std::max(1.0f, std::fabs(wanted[i]));
    ASSERT_LE(std::fabs(got[i] - wanted[i]), bound)
        << what << ": value " << i << " of " << got.size() << " is " << got[i] << ", not " << wanted[i];
  }
}

struct RunPlan {
  std::size_t tokens;
  bool is_new = false;
  std::size_t kept_tokens = 0;
};

/// Steps; pieces that end inside stages and chunks or at their ends; states that are kept on the way.
inline const std::vector<std::vector<RunPlan>> kRunPlans = {
    {{.tokens = 1}},
    {{.tokens = 1, .is_new = true, .kept_tokens = 1},
     {.tokens = 37, .kept_tokens = 20},
     {.tokens = 3, .is_new = true, .kept_tokens = 2},
     {.tokens = 2}},
    {{.tokens = 64, .is_new = true, .kept_tokens = 64}, {.tokens = 7, .kept_tokens = 1}},
};

/// Sequences of a batch with their states, of which a step has `values` after some of another step.
class RecurrentRuns {
 public:
  static constexpr std::size_t kBefore = 5, kAfter = 3;

  RecurrentRuns(const std::vector<RunPlan>& plan, std::size_t values)
      : plan_(plan), values_(values), memory_(gaussian(2 * plan.size() * slot(), 31)), wanted_(memory_) {
    for (const RunPlan& run : plan) tokens_ += run.tokens;
  }

  std::size_t tokens() const { return tokens_; }

  /// Calls host(first token, tokens, state) for pieces of all sequences, between which states are kept.
  template <class Host>
  void run_host(Host&& host) {
    std::size_t first = 0;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const RunPlan& run = plan_[i];
      const std::span<float> state = std::span(wanted_).subspan(i * slot() + kBefore, values_);
      if (run.is_new) std::ranges::fill(state, 0.0f);
      if (run.kept_tokens != 0) {
        host(first, run.kept_tokens, state);
        std::ranges::copy(state, wanted_.begin() + static_cast<std::ptrdiff_t>((plan_.size() + i) * slot() + kBefore));
      }
      if (run.kept_tokens < run.tokens) host(first + run.kept_tokens, run.tokens - run.kept_tokens, state);
      first += run.tokens;
    }
  }

  /// Calls device(runs, where the values begin in a state), and compares the states afterwards.
  template <class Gpu, class OnDevice>
  void run_device(Gpu& gpu, const std::string& what, OnDevice&& device) {
    using kernels::cuda::StateRun;
    auto memory = gpu.up(memory_);
    std::vector<StateRun> runs;
    std::size_t first = 0, most = 0;
    for (std::size_t i = 0; i < plan_.size(); ++i) {
      const RunPlan& run = plan_[i];
      runs.push_back({.state = memory.data() + i * slot(),
                      .kept = memory.data() + (plan_.size() + i) * slot(),
                      .first = static_cast<std::int32_t>(first),
                      .tokens = static_cast<std::int32_t>(run.tokens),
                      .kept_tokens = static_cast<std::int32_t>(run.kept_tokens),
                      .is_new = run.is_new ? 1 : 0});
      first += run.tokens;
      most = std::max(most, run.tokens);
    }
    const auto on_device = gpu.up(runs);
    device(kernels::cuda::StateRuns{on_device.data(), runs.size(), most}, kBefore);
    gpu.finish();
    expect_close(memory.values(), wanted_, what + ", states");
  }

 private:
  std::size_t slot() const { return kBefore + values_ + kAfter; }

  std::vector<RunPlan> plan_;
  std::size_t values_, tokens_ = 0;
  std::vector<float> memory_, wanted_;
};

template <class Gpu>
void compare_short_conv(Gpu& gpu, const std::vector<RunPlan>& plan, std::size_t channels, std::size_t kernel,
                        bool gated) {
  const std::string what = std::to_string(channels) + " channels, kernel " + std::to_string(kernel);
  RecurrentRuns runs(plan, (kernel - 1) * channels);
  const std::size_t count = runs.tokens() * channels;
  const std::vector<float> x = gaussian(count, 1), x_gate = gaussian(count, 2), y_gate = gaussian(count, 3);
  const std::vector<float> taps = gaussian(kernel * channels, 4);
  const std::vector<float> bias = gaussian(gated ? 0 : channels, 5);
  std::vector<float> in = x, wanted(count);
  for (std::size_t i = 0; gated && i < count; ++i) in[i] *= x_gate[i];
  runs.run_host([&](std::size_t first, std::size_t tokens, std::span<float> state) {
    kernels::short_conv(std::span(in).subspan(first * channels, tokens * channels), channels, taps, bias,
                        gated ? kernels::Activation::linear : kernels::Activation::silu, state, 0,
                        std::span(wanted).subspan(first * channels, tokens * channels));
  });
  for (std::size_t i = 0; gated && i < count; ++i) wanted[i] *= y_gate[i];
  const auto on_x = gpu.up(x), on_x_gate = gpu.up(x_gate), on_y_gate = gpu.up(y_gate);
  const auto on_taps = gpu.up(taps), on_bias = gpu.up(bias);
  auto y = gpu.up(std::vector<float>(count));
  runs.run_device(gpu, what, [&](const kernels::cuda::StateRuns& on_device, std::size_t at) {
    gpu.short_conv({.x = on_x.data(),
                    .x_gate = gated ? on_x_gate.data() : nullptr,
                    .y = y.data(),
                    .y_gate = gated ? on_y_gate.data() : nullptr,
                    .taps = on_taps.data(),
                    .bias = gated ? nullptr : on_bias.data(),
                    .channels = channels,
                    .kernel = kernel,
                    .state_at = at,
                    .silu = !gated},
                   on_device);
  });
  expect_close(y.values(), wanted, what);
}

template <class Gpu>
void compare_linear_scan(Gpu& gpu, const std::vector<RunPlan>& plan, const kernels::LinearScanShape& shape) {
  const std::string what = std::to_string(shape.heads) + " heads of " + std::to_string(shape.keys) + " x " +
                           std::to_string(shape.values) + (shape.delta ? ", delta" : "");
  RecurrentRuns runs(plan, shape.state());
  const std::size_t tokens = runs.tokens(), heads = shape.heads, cols = shape.channels(), width = shape.results();
  const float scale = 1 / std::sqrt(static_cast<float>(shape.keys));
  const std::vector<float> channels = gaussian(tokens * cols, 1, shape.delta ? 1 : scale);
  const std::vector<float> step = gaussian(tokens * heads, 2), gate = gaussian(shape.delta ? tokens * heads : 0, 3);
  const std::vector<float> bias = gaussian(heads, 4), skip = gaussian(shape.delta ? 0 : heads, 6);
  std::vector<float> rate = gaussian(heads, 5);
  for (float& one : rate) one = -std::exp(one);
  constexpr float kLow = 0.01f, kHigh = 1.5f;

  std::vector<float> sizes(step.size()), decay(step.size()), strength(gate.size()), wanted(tokens * width);
  std::vector<float> normalized = channels;
  kernels::step_sizes(step, bias, rate, kLow, kHigh, sizes, decay);
  if (shape.delta) {
    kernels::activate(kernels::Activation::sigmoid, gate, strength);
    kernels::normalize_keys(shape, normalized);
  } else {
    strength = sizes;
  }
  runs.run_host([&](std::size_t first, std::size_t count, std::span<float> state) {
    const auto part = [&](const std::vector<float>& all, std::size_t of_token) {
      return std::span(all).subspan(first * of_token, count * of_token);
    };
    kernels::linear_scan(shape, part(normalized, cols), part(decay, heads), part(strength, heads), skip, state, 0,
                         std::span(wanted).subspan(first * width, count * width));
  });

  const auto on_channels = gpu.up(channels), on_step = gpu.up(step), on_gate = gpu.up(gate), on_bias = gpu.up(bias);
  const auto on_rate = gpu.up(rate), on_skip = gpu.up(skip);
  auto y = gpu.up(std::vector<float>(wanted.size()));
  runs.run_device(gpu, what, [&](const kernels::cuda::StateRuns& on_device, std::size_t at) {
    gpu.linear_scan({.shape = shape,
                     .channels = on_channels.data(),
                     .step = on_step.data(),
                     .gate = shape.delta ? on_gate.data() : nullptr,
                     .step_bias = on_bias.data(),
                     .decay_rate = on_rate.data(),
                     .skip = shape.delta ? nullptr : on_skip.data(),
                     .low_step = kLow,
                     .high_step = kHigh,
                     .y = y.data(),
                     .state_at = at},
                    on_device);
  });
  expect_close(y.values(), wanted, what);
}

template <class Gpu>
void compare_channel_scan(Gpu& gpu, const std::vector<RunPlan>& plan, std::size_t channels, std::size_t states) {
  const std::string what = std::to_string(channels) + " channels with " + std::to_string(states) + " states";
  RecurrentRuns runs(plan, states * channels);
  const std::size_t tokens = runs.tokens();
  const std::vector<float> x = gaussian(tokens * channels, 1), step = gaussian(tokens * channels, 2);
  const std::vector<float> inputs = gaussian(tokens * 2 * states, 3), bias = gaussian(channels, 4);
  const std::vector<float> skip = gaussian(channels, 6);
  std::vector<float> rates = gaussian(states * channels, 5), sizes(step.size()), wanted(x.size());
  for (float& one : rates) one = -std::exp(one);
  kernels::step_sizes(step, bias, {}, 0, std::numeric_limits<float>::infinity(), sizes, {});
  runs.run_host([&](std::size_t first, std::size_t count, std::span<float> state) {
    const auto part = [&](const std::vector<float>& all, std::size_t of_token) {
      return std::span(all).subspan(first * of_token, count * of_token);
    };
    kernels::channel_scan(part(x, channels), part(sizes, channels), part(inputs, 2 * states), rates, skip, state, 0,
                          std::span(wanted).subspan(first * channels, count * channels));
  });
  const auto on_x = gpu.up(x), on_step = gpu.up(step), on_inputs = gpu.up(inputs), on_bias = gpu.up(bias);
  const auto on_rates = gpu.up(rates), on_skip = gpu.up(skip);
  auto y = gpu.up(std::vector<float>(wanted.size()));
  runs.run_device(gpu, what, [&](const kernels::cuda::StateRuns& on_device, std::size_t at) {
    gpu.channel_scan({.x = on_x.data(),
                      .step = on_step.data(),
                      .inputs = on_inputs.data(),
                      .step_bias = on_bias.data(),
                      .decay_rate = on_rates.data(),
                      .skip = on_skip.data(),
                      .y = y.data(),
                      .channels = channels,
                      .states = states,
                      .state_at = at},
                     on_device);
  });
  expect_close(y.values(), wanted, what);
}

/// `gate_first`: none: a norm alone.
template <class Gpu>
void compare_norm_and_gate(Gpu& gpu, std::size_t rows, std::size_t cols, std::size_t values, std::size_t groups,
                           std::optional<bool> gate_first) {
  const std::string what = "norm of " + std::to_string(values) + " of " + std::to_string(cols);
  constexpr float kEps = 1e-5f;
  const std::vector<float> x = gaussian(rows * cols, 1, 2), gate = gaussian(rows * cols, 2);
  const std::vector<float> weight = gaussian(groups * values, 3);
  std::vector<float> wanted = x;
  const auto multiply = [&] {
    for (std::size_t i = 0; i < x.size(); ++i) wanted[i] *= gate[i] / (1 + std::exp(-gate[i]));
  };
  if (gate_first == true) multiply();
  for (std::size_t run = 0; run * values < x.size(); ++run) {
    double squares = 0;
    for (std::size_t i = 0; i < values; ++i) {
      squares += static_cast<double>(wanted[run * values + i]) * static_cast<double>(wanted[run * values + i]);
    }
    const double factor = 1 / std::sqrt(squares / static_cast<double>(values) + static_cast<double>(kEps));
    for (std::size_t i = 0; i < values; ++i) {
      float& one = wanted[run * values + i];
      one = static_cast<float>(one * factor * static_cast<double>(weight[run % groups * values + i]));
    }
  }
  if (gate_first == false) multiply();
  const auto on_gate = gpu.up(gate), on_weight = gpu.up(weight);
  auto y = gpu.up(x);
  gpu.norm_and_gate({.x = y.data(),
                     .rows = rows,
                     .cols = cols,
                     .values = values,
                     .groups = groups,
                     .weight = on_weight.data(),
                     .eps = kEps,
                     .gate = gate_first ? on_gate.data() : nullptr,
                     .activation = kernels::Activation::silu,
                     .gate_first = gate_first.value_or(false)});
  gpu.finish();
  expect_close(y.values(), wanted, what);
}

/// Shapes of models, and others: keys and columns that fill no vector or tile, shared and grouped keys.
inline const std::vector<kernels::LinearScanShape> kScanShapes = {
    {.heads = 1, .groups = 1, .keys = 1, .values = 1},
    {.heads = 4, .groups = 2, .keys = 16, .values = 16, .delta = true},
    {.heads = 4, .groups = 2, .keys = 16, .values = 16, .delta = true, .tiled = true},
    {.heads = 4, .groups = 2, .keys = 16, .values = 16, .delta = true, .grouped = true},
    {.heads = 3, .groups = 3, .keys = 30, .values = 33, .delta = true, .grouped = true},
    {.heads = 6, .groups = 2, .keys = 33, .values = 40},
    {.heads = 2, .groups = 1, .keys = 64, .values = 64, .delta = true},
    {.heads = 2, .groups = 1, .keys = 128, .values = 64},
    {.heads = 2, .groups = 2, .keys = 128, .values = 128, .delta = true},
    {.heads = 2, .groups = 1, .keys = 256, .values = 80},
    {.heads = 1, .groups = 1, .keys = 131, .values = 7, .delta = true},
};

}  // namespace imago::testing
