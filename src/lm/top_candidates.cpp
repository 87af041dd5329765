#include "lm/top_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace imago::lm {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// Keeps the `count` first of them, in any order, and returns the logit that a new one must exceed.
float cut(std::vector<Candidate>& chosen, std::size_t count) {
  const auto last = chosen.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(chosen.begin(), last, chosen.end(), comes_before);
  chosen.resize(count);
  return chosen.back().logit;
}

/// Calls `look(i)` for the logits above `threshold`, which may rise meanwhile. NaN is not above anything. A block is
/// compared at once, which the compiler turns into a few vector instructions; nearly all blocks hold none.
template <class Look>
void each_above(std::span<const float> logits, const float& threshold, Look look) {
  constexpr std::size_t kBlock = 64;
  for (std::size_t from = 0; from < logits.size(); from += kBlock) {
    const std::span<const float> block = logits.subspan(from, std::min(kBlock, logits.size() - from));
    const float limit = threshold;
    int above = 0;
    for (const float logit : block) above |= logit > limit ? 1 : 0;
    if (above == 0) continue;
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] > threshold) look(from + i);
    }
  }
}

}  // namespace

void select_top(std::span<const float> logits, std::size_t count, std::vector<Candidate>& chosen) {
  chosen.clear();
  count = std::min(count, logits.size());
  if (count == 0) return;
  // Ids rise, so one that equals the last chosen loses to it: only larger ones are of interest. The room beyond
  // `count` makes cuts rare.
  const std::size_t room = 2 * count + 64;
  float threshold = kNever;
  each_above(logits, threshold, [&](std::size_t i) {
    chosen.push_back({static_cast<TokenId>(i), logits[i]});
    if (chosen.size() == room) threshold = cut(chosen, count);
  });
  if (chosen.size() > count) cut(chosen, count);
  std::sort(chosen.begin(), chosen.end(), comes_before);
}

std::optional<TokenId> most_likely(std::span<const float> logits) noexcept {
  std::optional<TokenId> best;
  float highest = kNever;
  each_above(logits, highest, [&](std::size_t i) {
    highest = logits[i];
    best = static_cast<TokenId>(i);
  });
  return best;
}

}  // namespace imago::lm
