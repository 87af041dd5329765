#pragma once

// The largest of many logits, without sorting them all.

#include <cstddef>
#include <span>
#include <vector>

#include "imago/lm.h"

namespace imago::lm {

struct Candidate {
  TokenId id;
  float logit;
  double probability = 0;  ///< filled by who needs it
};

/// Larger logits first, of equal ones the lower id.
inline bool comes_before(const Candidate& a, const Candidate& b) noexcept {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

/// The `count` largest, in that order, into `chosen`. NaN and -infinity are left out, so there may be fewer.
/// About one comparison per logit as long as `count` is small against them.
void select_top(std::span<const float> logits, std::size_t count, std::vector<Candidate>& chosen);

/// The most likely token; none if all logits are NaN or -infinity.
std::optional<TokenId> most_likely(std::span<const float> logits) noexcept;

}  // namespace imago::lm
