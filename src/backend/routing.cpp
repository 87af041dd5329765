#include "backend/routing.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/line_vector.h"
#include "kernels/ops.h"

namespace imago::backend {

namespace {

/// What is taken, and what is no number, comes after everything else.
constexpr float kTaken = -std::numeric_limits<float>::infinity();

/// The place of the largest entry, the first of equals. NaN is never the largest.
std::size_t best_of(std::span<const float> entries) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (entries[i] > entries[best] || !(entries[best] >= kTaken)) best = i;
  }
  return best;
}

/// What a group is judged by: the largest of its entries, or the sum of the two largest.
float group_score(std::span<const float> entries, bool two) {
  float first = kTaken, second = kTaken;
  for (const float entry : entries) {
    if (entry > first) {
      second = first;
      first = entry;
    } else if (entry > second) {
      second = entry;
    }
  }
  return two ? first + second : first;
}

/// Takes all groups but the best ones out of the choice.
void keep_groups(const Experts& experts, std::span<float> rank, std::span<float> groups) {
  const std::size_t size = rank.size() / groups.size();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g] = group_score(rank.subspan(g * size, size), experts.two_judge_group);
  }
  std::vector<bool> kept(groups.size());
  for (std::size_t i = 0; i < experts.groups_used; ++i) {
    const std::size_t best = best_of(groups);
    kept[best] = true;
    groups[best] = kTaken;
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!kept[g]) std::ranges::fill(rank.subspan(g * size, size), kTaken);
  }
}

}  // namespace

void Routing::route(const Experts& experts, std::span<float> scores, std::span<const float> choice_bias,
                    std::size_t tokens, std::span<const float> expert_scale) {
  const std::size_t used = experts.used;
  const std::span<std::size_t> experts_of = sized(chosen, tokens * used);
  const std::span<float> weights_of = sized(weights, tokens * used);
  const std::span<float> rank = sized(rank_, experts.count), groups = sized(groups_, experts.groups);
  if (experts.scores == ExpertScores::softmax) {
    kernels::softmax(scores, experts.count);
  } else {
    kernels::activate(kernels::Activation::sigmoid, scores, scores);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::span<const float> own = scores.subspan(t * experts.count, experts.count);
    std::ranges::copy(own, rank.begin());
    for (std::size_t e = 0; e < choice_bias.size(); ++e) rank[e] += choice_bias[e];
    if (experts.groups_used < experts.groups) keep_groups(experts, rank, groups);
    float sum = 0;
    for (std::size_t i = t * used; i < (t + 1) * used; ++i) {
      experts_of[i] = best_of(rank);
      weights_of[i] = own[experts_of[i]];
      rank[experts_of[i]] = kTaken;
      sum += weights_of[i];
    }
    const float factor = experts.normalize && sum > 0 ? experts.scale / sum : experts.scale;
    for (float& weight : weights_of.subspan(t * used, used)) weight *= factor;
    for (std::size_t i = t * used; !expert_scale.empty() && i < (t + 1) * used; ++i) {
      weights_of[i] *= expert_scale[experts_of[i]];
    }
  }
  arrange(experts, tokens);
}

void Routing::arrange(const Experts& experts, std::size_t tokens) {
  const std::span<const std::size_t> experts_of = std::span(chosen).first(tokens * experts.used);
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
