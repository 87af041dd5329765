#include "lm/rope_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <vector>

#include "imago/error.h"

namespace imago::lm {

namespace {

using models::RopeScaling;
using models::Traits;

constexpr std::size_t kFirstPositions = 1024;

double frequency(const Traits& traits, std::size_t pair) {
  return std::pow(traits.rope_base, -2 * static_cast<double>(pair) / static_cast<double>(traits.rotary));
}

/// Llama 3: slow pairs are stretched by the factor, fast ones stay, and between the two wavelengths it goes smoothly.
std::vector<double> llama3_factors(const Traits& traits) {
  const RopeScaling& scaling = traits.rope_scaling;
  std::vector<double> factors(traits.rotary / 2);
  for (std::size_t j = 0; j < factors.size(); ++j) {
    const double turns = scaling.original_context * frequency(traits, j) / (2 * std::numbers::pi);
    const double blend =
        std::clamp((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0.0, 1.0);
    factors[j] = (1 - blend) / scaling.factor + blend;
  }
  return factors;
}

/// YaRN: the same idea, blended linearly between the pairs that turn beta_fast and beta_slow times in the context.
std::vector<double> yarn_factors(const Traits& traits) {
  const RopeScaling& scaling = traits.rope_scaling;
  const double rotary = static_cast<double>(traits.rotary);
  const auto pair_of_turns = [&](double turns) {
    return rotary * std::log(scaling.original_context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(traits.rope_base));
  };
  double first = pair_of_turns(scaling.beta_fast), last = pair_of_turns(scaling.beta_slow);
  if (scaling.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, rotary - 1);
  const double length = first == last ? 0.001 : last - first;
  std::vector<double> factors(traits.rotary / 2);
  for (std::size_t j = 0; j < factors.size(); ++j) {
    const double stretch = std::clamp((static_cast<double>(j) - first) / length, 0.0, 1.0);
    factors[j] = stretch / scaling.factor + (1 - stretch);
  }
  return factors;
}

}  // namespace

kernels::RopeSettings rope_settings(const Traits& traits, std::span<const float> divisors) {
  kernels::RopeSettings settings{
      .rotary = traits.rotary, .base = traits.rope_base, .frequency_factors = {}, .attention_factor = 1};
  const RopeScaling& scaling = traits.rope_scaling;
  switch (scaling.kind) {
    case RopeScaling::Kind::none: break;
    case RopeScaling::Kind::linear: settings.frequency_factors.assign(traits.rotary / 2, 1 / scaling.factor); break;
    case RopeScaling::Kind::llama3: settings.frequency_factors = llama3_factors(traits); break;
    case RopeScaling::Kind::yarn:
      settings.frequency_factors = yarn_factors(traits);
      settings.attention_factor =
          scaling.attention_factor != 0 ? scaling.attention_factor : 0.1 * std::log(scaling.factor) + 1;
      break;
  }
  if (divisors.empty()) return settings;
  if (divisors.size() != traits.rotary / 2) {
    throw UsageError(fmt::format("{} divisors of rotary frequencies for {} pairs", divisors.size(), traits.rotary / 2));
  }
  settings.frequency_factors.clear();
  for (const float divisor : divisors) {
    if (!(divisor > 0)) throw UsageError(fmt::format("a rotary frequency is divided by {}", divisor));
    settings.frequency_factors.push_back(1 / static_cast<double>(divisor));
  }
  return settings;
}

std::shared_ptr<const kernels::RopeTable> RopeTables::with(std::size_t positions) const {
  std::lock_guard lock(mutex_);
  if (table_ == nullptr || table_->positions() < positions) {
    // Doubling: a sequence that grows token by token makes few tables.
    table_ = std::make_shared<kernels::RopeTable>(settings_, std::bit_ceil(std::max(positions, kFirstPositions)));
  }
  return table_;
}

}  // namespace imago::lm
