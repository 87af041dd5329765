#include "backend/workspace.h"

#include <algorithm>
#include <numeric>

namespace imago::backend {

namespace {

/// The experts of one token, best first, with their weights.
void choose_experts(bool normalize, std::span<float> probabilities, std::span<std::size_t> chosen,
                    std::span<float> weights) {
  float sum = 0;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const auto best = std::max_element(probabilities.begin(), probabilities.end());
    chosen[i] = static_cast<std::size_t>(best - probabilities.begin());
    weights[i] = *best;
    sum += *best;
    *best = -1;  // taken
  }
  if (!normalize || !(sum > 0)) return;
  for (float& weight : weights) weight /= sum;
}

}  // namespace

void Routing::route(const Experts& experts, std::span<float> probabilities, std::size_t tokens) {
  const std::size_t used = experts.used;
  const std::span<std::size_t> experts_of = sized(chosen, tokens * used);
  const std::span<float> weights_of = sized(weights, tokens * used);
  for (std::size_t t = 0; t < tokens; ++t) {
    choose_experts(experts.normalize, probabilities.subspan(t * experts.count, experts.count),
                   experts_of.subspan(t * used, used), weights_of.subspan(t * used, used));
  }
  // Rows go expert after expert, tokens in order within one.
  const std::span<std::size_t> starts = sized(firsts, experts.count + 1);
  const std::span<std::size_t> rows = sized(row_of, experts_of.size());
  std::fill(starts.begin(), starts.end(), 0);
  for (const std::size_t expert : experts_of) ++starts[expert + 1];
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = starts[experts_of[i]]++;
  // Each entry has moved on to the first row of the next expert: shift them back.
  std::copy_backward(starts.begin(), starts.end() - 1, starts.end());
  starts[0] = 0;
}

void Routing::count_singles(const Experts& experts, std::size_t tokens) {
  const std::span<std::size_t> counts = sized(singles, experts.count);
  std::ranges::fill(counts, 0);
  for (std::size_t i = 0; i < tokens * experts.used; ++i) ++counts[chosen[i]];
}

}  // namespace imago::backend
