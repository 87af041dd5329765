#include "layers/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/system.h"
#include "imago/error.h"
#include "weights/random.h"

namespace imago::layers {

std::size_t required(const LayerConfig& config, int value, std::string_view field) {
  if (value <= 0) throw UsageError(fmt::format("{} needs {} of 1 or more, not {}", name(config.type), field, value));
  return static_cast<std::size_t>(value);
}

WeightShape no_weights(const LayerConfig&) { return {}; }

void initialize_uniform(WeightStore& weights, std::uint64_t seed, std::size_t first, std::size_t count) {
  constexpr float kRange = 0.1f;
  fill_uniform(weights.edit_master().subspan(first, count), derive_seed(seed, first), kRange);
}

void check_memory(std::size_t values, std::string_view who, std::string_view what) {
  constexpr std::size_t kNotWorthAsking = std::size_t{1} << 28;
  if (values <= kNotWorthAsking) return;
  const std::uint64_t memory = inspect_machine().memory_bytes;
  if (memory == 0 || values <= memory / sizeof(float)) return;
  constexpr double kGiB = 1 << 30;
  throw UsageError(fmt::format("{}: {} {} take {:.1f} GiB, and this machine has {:.1f} GiB", who, values, what,
                               static_cast<double>(values) * sizeof(float) / kGiB, static_cast<double>(memory) / kGiB));
}

void initialize_constant(WeightStore& weights, std::size_t first, std::size_t count, float value) {
  std::ranges::fill(weights.edit_master().subspan(first, count), value);
}

}  // namespace imago::layers
