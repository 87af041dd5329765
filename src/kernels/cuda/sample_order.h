#pragma once

// The order in which a sampler considers tokens, as integer keys: larger logits first, lower ids first among equals.
// For host and device.

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// Can be chosen at all: neither NaN nor -infinity.
IMAGO_HD bool is_candidate(float logit) noexcept { return logit > float_of_bits(0xFF800000u); }

/// Grows with the logit; both zeros have the same key.
IMAGO_HD std::uint32_t order_key(float logit) noexcept {
  const std::uint32_t bits = bits_of_float(logit == 0 ? 0.0f : logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// The first tokens of the order, up to and including the one with this key and id.
struct Cut {
  std::uint32_t key = 0, id = 0xFFFFFFFFu;
  IMAGO_HD bool has(std::uint32_t other_key, std::uint32_t other_id) const noexcept {
    return other_key > key || (other_key == key && other_id <= id);
  }
};

/// Also drops tokens whose logit is below `lowest`.
IMAGO_HD Cut cut_below(Cut cut, double lowest) noexcept {
  float least = static_cast<float>(lowest);
  std::uint32_t key = order_key(least);
  if (static_cast<double>(least) < lowest) ++key;  // the next float up
  return key > cut.key ? Cut{key, 0xFFFFFFFFu} : cut;
}

/// Bins of a histogram that a selection narrows down step by step; bin 0 holds what comes first.
inline constexpr std::uint32_t kSampleBins = 2048;

/// The first histogram: equal steps below the largest logit, since the bits of floats would crowd into few bins.
IMAGO_HD std::uint32_t distance_bin(float logit, float largest) noexcept {
  const float steps = times(minus(largest, logit), 32.0f);
  return steps < static_cast<float>(kSampleBins - 1) ? static_cast<std::uint32_t>(steps) : kSampleBins - 1;
}

/// The next ones: the bits of the key from the top (11, 11 and 10), then those of the id (10, 11 and 11).
struct DigitStep {
  bool of_id;
  std::uint32_t shift, bits;
};
IMAGO_HD DigitStep digit_step(int step) noexcept {
  switch (step) {
    case 0: return {false, 21, 11};
    case 1: return {false, 10, 11};
    case 2: return {false, 0, 10};
    case 3: return {true, 22, 10};
    case 4: return {true, 11, 11};
    default: return {true, 0, 11};
  }
}
inline constexpr int kDigitSteps = 6;

}  // namespace imago::kernels::cuda
