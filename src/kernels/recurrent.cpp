#include "kernels/recurrent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/cpu.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/operation_sizes.h"
#include "kernels/ops_table.h"

namespace imago::kernels {

namespace {

// Channels are handed out in whole lines.
constexpr std::size_t kLineChannels = 16;

/// Calls body(first, count) for ranges of channels, on all threads, where each channel is worth `values`.
template <class Body>
void for_channels(std::size_t channels, std::size_t values, Body&& body) {
  const std::size_t lines = std::max<std::size_t>(1, kGrain / std::max<std::size_t>(1, kLineChannels * values));
  parallel_for(channels, lines * kLineChannels, [&](std::size_t begin, std::size_t end) { body(begin, end - begin); });
}

}  // namespace

void short_conv(std::span<const float> x, std::size_t channels, std::span<const float> taps,
                std::span<const float> bias, Activation activation, std::span<float> state, std::size_t first_result,
                std::span<float> y) {
  constexpr std::string_view kName = ShortConvArgs::kName;
  const std::size_t tokens = rows_of(kName, x.size(), channels), kernel = rows_of(kName, taps.size(), channels);
  if (kernel == 0 || kernel > kMaxTaps) {
    throw ShapeError(fmt::format("[{}] a kernel of {} taps; it can have 1 to {}", kName, kernel, kMaxTaps));
  }
  if (first_result > tokens) throw ShapeError(fmt::format("[{}] results from {} of {}", kName, first_result, tokens));
  check_size(kName, "state", state.size(), (kernel - 1) * channels);
  check_size(kName, "y", y.size(), (tokens - first_result) * channels);
  if (!bias.empty()) check_size(kName, "bias", bias.size(), channels);
  const auto& row = choose_op<ShortConvArgs>(allowed_cpu_features());
  for_channels(channels, tokens * kernel, [&](std::size_t first, std::size_t count) {
    row.run({.x = x.data() + first,
             .y = y.data() + first,
             .taps = taps.data() + first,
             .bias = bias.empty() ? nullptr : bias.data() + first,
             .state = state.data() + first,
             .tokens = tokens,
             .first_result = first_result,
             .channels = count,
             .stride = channels,
             .kernel = kernel,
             .activation = activation});
  });
}

void step_sizes(std::span<const float> x, std::span<const float> bias, std::span<const float> rate, float low,
                float high, std::span<float> step, std::span<float> decay) {
  constexpr std::string_view kName = StepSizeArgs::kName;
  const std::size_t cols = bias.size(), rows = rows_of(kName, x.size(), cols);
  if (!step.empty()) check_size(kName, "step", step.size(), x.size());
  if (!decay.empty()) {
    check_size(kName, "decay", decay.size(), x.size());
    check_size(kName, "rate", rate.size(), cols);
  }
  const auto& row = choose_op<StepSizeArgs>(allowed_cpu_features());
  const auto at = [](std::span<float> values, std::size_t first) {
    return values.empty() ? nullptr : values.data() + first;
  };
  parallel_for(rows, std::max<std::size_t>(1, kGrain / 8 / cols), [&](std::size_t begin, std::size_t end) {
    row.run({.x = x.data() + begin * cols,
             .rows = end - begin,
             .cols = cols,
             .bias = bias.data(),
             .rate = rate.data(),
             .step = at(step, begin * cols),
             .decay = at(decay, begin * cols),
             .low = low,
             .high = high});
  });
}

void normalize_keys(const LinearScanShape& shape, std::span<float> channels) {
  constexpr float kEps = 1e-6F;  // on the sum of squares, as all models have it
  const std::size_t stride = shape.channels(), keys = shape.keys;
  const std::size_t tokens = rows_of(LinearScanArgs::kName, channels.size(), stride);
  if (shape.groups * keys == 0) return;
  // An RMS norm leaves the length √keys.
  const float to_one = 1 / std::sqrt(static_cast<float>(keys));
  const std::vector<float> of_key(keys, to_one), of_query(keys, to_one * to_one);
  const auto& row = choose_op<RmsNormArgs>(allowed_cpu_features());
  const std::size_t runs = shape.grouped ? shape.groups : 1;  // of heads that follow each other
  parallel_rows(tokens, 2 * shape.groups * keys, [&](std::size_t token) {
    for (std::size_t run = 0; run < 2 * runs; ++run) {
      const bool is_key = run % 2 != 0;
      float* const at =
          channels.data() + token * stride + run / 2 * (stride / runs) + (is_key ? shape.groups / runs * keys : 0);
      row.run({.x = at,
               .y = at,
               .rows = shape.groups / runs,
               .cols = keys,
               .weight = (is_key ? of_key : of_query).data(),
               .weight_offset = 0,
               .eps = kEps / static_cast<float>(keys)});
    }
  });
}

void linear_scan(const LinearScanShape& shape, std::span<const float> channels, std::span<const float> decay,
                 std::span<const float> strength, std::span<const float> skip, std::span<float> state,
                 std::size_t first_result, std::span<float> y) {
  constexpr std::string_view kName = LinearScanArgs::kName;
  if (shape.groups == 0 || shape.heads % shape.groups != 0) {
    throw ShapeError(fmt::format("[{}] {} heads cannot be {} groups", kName, shape.heads, shape.groups));
  }
  const std::size_t stride = shape.channels(), tokens = rows_of(kName, channels.size(), stride);
  if (first_result > tokens) throw ShapeError(fmt::format("[{}] results from {} of {}", kName, first_result, tokens));
  check_size(kName, "decay", decay.size(), tokens * shape.heads);
  check_size(kName, "strength", strength.size(), tokens * shape.heads);
  check_size(kName, "state", state.size(), shape.state());
  check_size(kName, "y", y.size(), (tokens - first_result) * shape.results());
  if (!skip.empty()) check_size(kName, "skip", skip.size(), shape.heads);
  if (tokens == 0 || shape.values == 0) return;

  const std::size_t all_keys = shape.groups * shape.keys;
  const float* const values = channels.data() + (shape.delta ? 2 * all_keys : 0);
  const float* const keys = channels.data() + (shape.delta ? all_keys : shape.results());
  const float* const queries = channels.data() + (shape.delta ? 0 : shape.results() + all_keys);
  const std::size_t group_heads = shape.heads / shape.groups, group_stride = stride / shape.groups;
  const std::size_t tiles = (shape.values + kStateColumns - 1) / kStateColumns;
  const auto& row = choose_op<LinearScanArgs>(allowed_cpu_features());
  const std::size_t grain =
      std::max<std::size_t>(1, kGrain / (tokens * std::max<std::size_t>(1, shape.keys * kStateColumns)));
  parallel_for(shape.heads * tiles, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t unit = begin; unit < end; ++unit) {
      const std::size_t head = unit / tiles, column = unit % tiles * kStateColumns;
      const std::size_t group = shape.tiled ? head % shape.groups : head / (shape.heads / shape.groups);
      const float* const own = channels.data() + group * group_stride;
      const std::size_t among = shape.grouped ? head % group_heads * shape.values : head * shape.values;
      row.run({.q = shape.grouped ? own : queries + group * shape.keys,
               .k = shape.grouped ? own + shape.keys : keys + group * shape.keys,
               .v = (shape.grouped ? own + 2 * shape.keys : values) + among + column,
               .stride = stride,
               .y = y.data() + head * shape.values + column,
               .y_stride = shape.results(),
               .decay = decay.data() + head,
               .strength = strength.data() + head,
               .scalar_stride = shape.heads,
               .tokens = tokens,
               .first_result = first_result,
               .keys = shape.keys,
               .values = std::min(kStateColumns, shape.values - column),
               .state = state.data() + head * shape.keys * shape.values + column * shape.keys,
               .delta = shape.delta,
               .skip = skip.empty() ? 0 : skip[head]});
    }
  });
}

void channel_scan(std::span<const float> x, std::span<const float> step, std::span<const float> inputs,
                  std::span<const float> rates, std::span<const float> skip, std::span<float> state,
                  std::size_t first_result, std::span<float> y) {
  constexpr std::string_view kName = ChannelScanArgs::kName;
  const std::size_t channels = skip.size(), tokens = rows_of(kName, x.size(), channels);
  const std::size_t states = rows_of(kName, rates.size(), channels);
  if (first_result > tokens) throw ShapeError(fmt::format("[{}] results from {} of {}", kName, first_result, tokens));
  check_size(kName, "step", step.size(), x.size());
  check_size(kName, "inputs", inputs.size(), 2 * tokens * states);
  check_size(kName, "state", state.size(), rates.size());
  check_size(kName, "y", y.size(), (tokens - first_result) * channels);
  const auto& row = choose_op<ChannelScanArgs>(allowed_cpu_features());
  for_channels(channels, tokens * states * 4, [&](std::size_t first, std::size_t count) {  // each takes an exponential
    row.run({.x = x.data() + first,
             .step = step.data() + first,
             .y = y.data() + first,
             .stride = channels,
             .b = inputs.data(),
             .r = inputs.data() + states,
             .b_stride = 2 * states,
             .tokens = tokens,
             .first_result = first_result,
             .channels = count,
             .states = states,
             .rates = rates.data() + first,
             .skip = skip.data() + first,
             .state = state.data() + first});
  });
}

}  // namespace imago::kernels
