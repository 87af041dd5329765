#include "models/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "imago/error.h"

namespace imago::models {

namespace {

constexpr int kSmallestContextBits = 3, kLargestContextBits = 24;

/// Writers compute divisors in float32 or float64, in one order or another.
constexpr double kTolerance = 1e-4;

/// Llama 3: slow pairs are stretched by the factor, fast ones stay, and between the two wavelengths it goes smoothly.
std::vector<double> llama3_factors(const Rope& rope) {
  const RopeScaling& scaling = rope.scaling;
  std::vector<double> factors(rope.rotary / 2);
  for (std::size_t j = 0; j < factors.size(); ++j) {
    const double frequency = std::pow(rope.base, -2 * static_cast<double>(j) / static_cast<double>(rope.rotary));
    const double turns = scaling.original_context * frequency / (2 * std::numbers::pi);
    const double blend =
        std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    factors[j] = (1 - blend) / scaling.factor + blend;
  }
  return factors;
}

/// YaRN: the same idea, blended linearly between the pairs that turn beta_fast and beta_slow times in the context.
std::vector<double> yarn_factors(const Rope& rope) {
  const RopeScaling& scaling = rope.scaling;
  const double rotary = static_cast<double>(rope.rotary);
  const auto pair_of_turns = [&](double turns) {
    return rotary * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.base));
  };
  double first = pair_of_turns(scaling.beta_fast), last = pair_of_turns(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, rotary - 1);
  const double length = first == last ? 0.001 : last - first;
  std::vector<double> factors(rope.rotary / 2);
  for (std::size_t j = 0; j < factors.size(); ++j) {
    const double stretch = std::clamp((static_cast<double>(j) - first) / length, 0.0, 1.0);
    factors[j] = stretch / scaling.factor + (1 - stretch);
  }
  return factors;
}

/// The pairs after the share of those that turn stand still.
std::vector<double> proportional_factors(const Rope& rope) {
  std::vector<double> factors(rope.rotary / 2, 0.0);
  const double share = rope.scaling.kind == RopeScaling::Kind::proportional ? rope.scaling.factor : 1;
  const auto turning = static_cast<std::size_t>(share * static_cast<double>(rope.rotary) / 2);
  std::fill_n(factors.begin(), std::min(turning, factors.size()), 1.0);
  return factors;
}

}  // namespace

kernels::RopeSettings rope_settings(const Rope& rope, std::span<const float> divisors) {
  kernels::RopeSettings settings{
      .rotary = rope.rotary, .base = rope.base, .frequency_factors = {}, .attention_factor = 1};
  const RopeScaling& scaling = rope.scaling;
  switch (scaling.kind) {
    case RopeScaling::Kind::none: break;
    case RopeScaling::Kind::proportional: settings.frequency_factors = proportional_factors(rope); break;
    case RopeScaling::Kind::linear: settings.frequency_factors.assign(rope.rotary / 2, 1 / scaling.factor); break;
    case RopeScaling::Kind::llama3: settings.frequency_factors = llama3_factors(rope); break;
    case RopeScaling::Kind::yarn:
      settings.frequency_factors = yarn_factors(rope);
      settings.attention_factor =
          scaling.attention_factor != 0 ? scaling.attention_factor : yarn_attention_factor(scaling.factor);
      break;
  }
  if (divisors.empty()) return settings;
  if (divisors.size() != rope.rotary / 2) {
    throw UsageError(fmt::format("{} divisors of rotary frequencies for {} pairs", divisors.size(), rope.rotary / 2));
  }
  settings.frequency_factors.clear();
  for (const float divisor : divisors) {
    if (!(divisor > 0)) throw UsageError(fmt::format("a rotary frequency is divided by {}", divisor));
    settings.frequency_factors.push_back(1 / static_cast<double>(divisor));
  }
  return settings;
}

double yarn_attention_factor(double factor) noexcept { return factor <= 1 ? 1 : 0.1 * std::log(factor) + 1; }

std::vector<float> proportional_divisors(const Rope& rope) {
  constexpr float kStill = 1e30F;  // as llama.cpp's converter has it
  std::vector<float> divisors;
  for (const double factor : proportional_factors(rope)) divisors.push_back(factor == 0 ? kStill : 1.0F);
  return divisors;
}

std::optional<RopeScaling> proportional_scaling(std::span<const float> divisors) {
  const auto still = std::ranges::find_if(divisors, [](float divisor) { return divisor >= 1e20F; });
  const auto is_one = [](float divisor) { return divisor == 1; };
  const auto is_large = [](float divisor) { return divisor >= 1e20F; };
  if (!std::all_of(divisors.begin(), still, is_one) || !std::all_of(still, divisors.end(), is_large)) {
    return std::nullopt;
  }
  const double share = static_cast<double>(still - divisors.begin()) / static_cast<double>(divisors.size());
  return RopeScaling{.kind = RopeScaling::Kind::proportional, .factor = share};
}

std::vector<float> llama3_divisors(const Rope& rope) {
  std::vector<float> divisors;
  for (const double factor : llama3_factors(rope)) divisors.push_back(static_cast<float>(1 / factor));
  return divisors;
}

std::optional<RopeScaling> llama3_scaling(const Rope& rope, std::span<const float> divisors) {
  if (divisors.empty() || divisors.size() != rope.rotary / 2 || !(divisors.back() >= 1)) return std::nullopt;
  Rope tried = rope;
  tried.scaling = {.kind = RopeScaling::Kind::llama3, .factor = static_cast<double>(divisors.back())};
  for (int bits = kSmallestContextBits; bits <= kLargestContextBits; ++bits) {
    tried.scaling.original_context = std::ldexp(1.0, bits);
    const auto close = [](float a, float b) { return std::abs(a - b) <= kTolerance * std::abs(b); };
    if (std::ranges::equal(divisors, llama3_divisors(tried), close)) return tried.scaling;
  }
  return std::nullopt;
}

}  // namespace imago::models
