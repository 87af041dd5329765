#include "lm/prediction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/ops.h"

namespace imago::lm {

namespace {

/// Sums that run side by side, so that one addition does not wait for the other. A fixed number: the result must not
/// depend on the machine.
constexpr std::size_t kLanes = 8;

template <class Term>
double sum_of(std::size_t count, Term&& term) {
  std::array<double, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sums[lane] += term(i + lane);
  }
  for (; i < count; ++i) sums[0] += term(i);
  double sum = 0;
  for (const double lane : sums) sum += lane;
  return sum;
}

}  // namespace

void Prediction::set(std::span<const float> logits) {
  logits_ = logits;
  top_ = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  probabilities_.assign(logits.begin(), logits.end());
  kernels::softmax(probabilities_, probabilities_.size());
  total_ = sum_of(logits.size(), [&](std::size_t i) { return static_cast<double>(probabilities_[i]); });
  // The softmax of the top is one over the sum of all exponentials, and rounded; all others carry the same rounding, so
  // the ratio to their sum is free of it.
  log_sum_ = static_cast<double>(logits[top_]) + std::log(total_ / static_cast<double>(probabilities_[top_]));
}

double Prediction::divergence_of(const Prediction& other) const {
  const float* p = probabilities_.data();
  const float* ours = logits_.data();
  const float* theirs = other.logits_.data();
  const double shift = sum_of(logits_.size(), [=](std::size_t i) {
    // Tokens that are ruled out here count nothing, whatever the other says: not 0 · infinity.
    return p[i] == 0 ? 0.0
                     : static_cast<double>(p[i]) * (static_cast<double>(ours[i]) - static_cast<double>(theirs[i]));
  });
  const double divergence = shift / total_ - (log_sum_ - other.log_sum_);
  if (std::isnan(divergence)) return std::numeric_limits<double>::infinity();
  return divergence < 0 ? 0 : divergence;  // rounding of what is zero
}

}  // namespace imago::lm
