#include "layers/meta_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "imago/error.h"

namespace imago::layers {

namespace {

constexpr double kActive = 1e-6;  // magnitudes above count as active; averages below are too small for a ratio

/// The latest input deviates more than `threshold` times as much as the one two before it.
bool is_storm(double threshold, const std::deque<TensorStats>* history) {
  if (history == nullptr || history->size() < 3) return false;
  const double older = (*history)[history->size() - 3].deviation;
  return older != 0 && history->back().deviation / (older + 1e-8) > threshold;
}

bool is_drift(double threshold, const Observation& seen) {
  const double in = std::abs(seen.input.average);
  return in >= kActive && std::abs(std::abs(seen.output.average) / in - 1) > threshold;
}

}  // namespace

TensorStats stats_of(const Tensor<float>& tensor) {
  TensorStats stats;
  stats.total = tensor.size();
  if (stats.total == 0) return stats;
  double sum = 0, squares = 0;
  stats.maximum = stats.minimum = tensor[0];
  for (const float element : tensor.values()) {
    const double value = element;
    sum += value;
    squares += value * value;
    stats.maximum = std::max(stats.maximum, value);
    stats.minimum = std::min(stats.minimum, value);
    if (std::abs(value) > kActive) ++stats.active;
  }
  const double count = static_cast<double>(stats.total);
  stats.average = sum / count;
  stats.deviation = std::sqrt(std::max(0.0, squares / count - stats.average * stats.average));
  return stats;
}

void remember_input(const TensorStats& stats, Run& run) {
  if (run.grid == nullptr) return;
  std::deque<TensorStats>& history = run.grid->history();
  history.push_back(stats);
  while (history.size() > kMetaHistory) history.pop_front();
}

bool condition_holds(const MetaRule& rule, const Observation& seen) {
  const TensorStats& out = seen.output;
  switch (rule.condition) {
    case 1: return out.deviation > rule.threshold;
    case 2: return out.deviation < rule.threshold;
    case 3: return std::abs(out.average) > rule.threshold;
    case 4: return std::abs(out.average) < rule.threshold;
    case 5: return std::abs(out.maximum) > rule.threshold;
    case 6: return out.total > 0 && static_cast<double>(out.active) / static_cast<double>(out.total) < rule.threshold;
    case 7: return is_storm(rule.threshold, seen.history);
    case 8: return is_drift(rule.threshold, seen);
    default: return false;
  }
}

Layer& command_target(const Layer& layer, float column, Run& run) {
  if (run.grid == nullptr) {
    throw UsageError(describe(layer) + ": a command for another layer needs a network around this one");
  }
  return run.grid->layer({0, 0, int_of(column), 0});
}

int int_of(float value) noexcept {
  constexpr float kLimit = 2147483648.0f;  // 2^31, the first float that no int holds
  if (std::isnan(value)) return 0;
  if (value >= kLimit) return std::numeric_limits<int>::max();
  if (value < -kLimit) return std::numeric_limits<int>::min();
  return static_cast<int>(value);
}

}  // namespace imago::layers
