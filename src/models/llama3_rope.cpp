// Rope scaling of Llama 3 as GGUF has it: not the rule, but what it does to each frequency.

#include <cmath>

#include "models/recipe_parts.h"

namespace imago::models {

namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr int kSmallestContextBits = 3, kLargestContextBits = 24;

/// Writers compute in float32 or float64, in one order or another.
constexpr double kTolerance = 1e-4;

bool same(std::span<const float> factors, const std::vector<float>& other) {
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (!(std::abs(factors[i] - other[i]) <= kTolerance * std::abs(other[i]))) return false;
  }
  return true;
}

}  // namespace

std::vector<float> llama3_factors(const Traits& traits, const RopeScaling& scaling) {
  std::vector<float> factors(traits.rotary / 2);
  const double low_wavelength = scaling.original_context / scaling.low_freq_factor;
  const double high_wavelength = scaling.original_context / scaling.high_freq_factor;
  for (std::size_t pair = 0; pair < factors.size(); ++pair) {
    const double exponent = 2.0 * static_cast<double>(pair) / static_cast<double>(traits.rotary);
    const double wavelength = 2 * kPi * std::pow(traits.rope_base, exponent);
    double factor = 1;
    if (wavelength > low_wavelength) {
      factor = scaling.factor;
    } else if (wavelength >= high_wavelength) {
      const double smooth = (scaling.original_context / wavelength - scaling.low_freq_factor) /
                            (scaling.high_freq_factor - scaling.low_freq_factor);
      factor = 1 / ((1 - smooth) / scaling.factor + smooth);
    }
    factors[pair] = static_cast<float>(factor);
  }
  return factors;
}

std::optional<RopeScaling> llama3_scaling(const Traits& traits, std::span<const float> factors) {
  if (factors.empty() || factors.size() != traits.rotary / 2 || !(factors.back() >= 1)) return std::nullopt;
  RopeScaling scaling{.kind = RopeScaling::Kind::llama3, .factor = static_cast<double>(factors.back())};
  for (int bits = kSmallestContextBits; bits <= kLargestContextBits; ++bits) {
    scaling.original_context = std::ldexp(1.0, bits);
    if (same(factors, llama3_factors(traits, scaling))) return scaling;
  }
  return std::nullopt;
}

}  // namespace imago::models
