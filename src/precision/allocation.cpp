#include "precision/allocation.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace imago::precision {

namespace {

/// Fine enough: a thousand tensors waste at most 1.5 % of the budget by rounding, and most of that is spent afterwards.
constexpr std::uint64_t kMostUnits = std::uint64_t{1} << 16;
constexpr double kNever = std::numeric_limits<double>::infinity();

std::uint64_t unit_of(std::span<const std::vector<TypeOption>> tensors, std::uint64_t budget) {
  std::uint64_t divisor = 0;
  for (const auto& options : tensors) {
    for (const TypeOption& option : options) divisor = std::gcd(divisor, option.bytes);
  }
  divisor = std::max<std::uint64_t>(divisor, 1);
  return budget / divisor <= kMostUnits ? divisor : budget / kMostUnits + 1;
}

/// The multiple-choice knapsack: after each tensor, the least cost for every total size.
std::optional<Choices> solve(std::span<const std::vector<TypeOption>> tensors, std::uint64_t unit, std::size_t units) {
  const auto units_for = [&](const TypeOption& option) { return (option.bytes + unit - 1) / unit; };
  std::vector<double> least(units + 1, 0), next(units + 1);
  std::vector<std::vector<std::uint8_t>> chosen;
  for (const auto& options : tensors) {
    std::vector<std::uint8_t>& choice = chosen.emplace_back(units + 1);
    std::ranges::fill(next, kNever);
    for (std::size_t i = 0; i < options.size(); ++i) {
      const std::uint64_t size = units_for(options[i]);
      for (std::size_t total = size; total <= units; ++total) {
        const double cost = least[total - size] + options[i].cost;
        if (cost >= next[total]) continue;
        next[total] = cost;
        choice[total] = static_cast<std::uint8_t>(i);
      }
    }
    std::swap(least, next);
  }
  if (least[units] == kNever) return std::nullopt;
  Choices choices(tensors.size());
  std::size_t total = units;
  for (std::size_t tensor = tensors.size(); tensor-- > 0;) {
    choices[tensor] = chosen[tensor][total];
    total -= units_for(tensors[tensor][choices[tensor]]);
  }
  return choices;
}

/// Spends what rounding left over on the changes that gain most per byte.
void spend_rest(std::span<const std::vector<TypeOption>> tensors, std::uint64_t budget, Choices& choices) {
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) used += tensors[i][choices[i]].bytes;
  for (;;) {
    double best_gain = 0;
    std::size_t best_tensor = 0, best_option = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const TypeOption& now = tensors[i][choices[i]];
      for (std::size_t option = 0; option < tensors[i].size(); ++option) {
        const TypeOption& other = tensors[i][option];
        if (other.cost >= now.cost || used - now.bytes + other.bytes > budget) continue;
        const double more_bytes = other.bytes > now.bytes ? static_cast<double>(other.bytes - now.bytes) : 1;
        const double gain = (now.cost - other.cost) / more_bytes;
        if (gain <= best_gain) continue;
        best_gain = gain;
        best_tensor = i;
        best_option = option;
      }
    }
    if (best_gain <= 0) return;
    used = used - tensors[best_tensor][choices[best_tensor]].bytes + tensors[best_tensor][best_option].bytes;
    choices[best_tensor] = best_option;
  }
}

}  // namespace

std::uint64_t smallest_size(std::span<const std::vector<TypeOption>> tensors) {
  std::uint64_t bytes = 0;
  for (const auto& options : tensors) bytes += std::ranges::min(options, {}, &TypeOption::bytes).bytes;
  return bytes;
}

std::optional<Choices> allocate(std::span<const std::vector<TypeOption>> tensors, std::uint64_t budget) {
  if (smallest_size(tensors) > budget) return std::nullopt;
  const std::uint64_t unit = unit_of(tensors, budget);
  auto choices = solve(tensors, unit, static_cast<std::size_t>(budget / unit));
  if (!choices) {
    // Not even the smallest fit once rounded up: start from them.
    choices.emplace();
    for (const auto& options : tensors) {
      const auto smallest = std::ranges::min_element(options, {}, &TypeOption::bytes);
      choices->push_back(static_cast<std::size_t>(smallest - options.begin()));
    }
  }
  spend_rest(tensors, budget, *choices);
  return choices;
}

}  // namespace imago::precision
