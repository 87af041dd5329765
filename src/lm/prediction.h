#pragma once

// What a model predicts at one position, and how far another model's prediction is from it.

#include <cstddef>
#include <span>
#include <vector>

namespace imago::lm {

/// The distribution that logits stand for. Exponentials are those of the fast float32 kernel, sums are in double: a
/// divergence is true to about 1e-7 nats, and that of equal logits is exactly 0. Keeps its memory for the next one.
class Prediction {
 public:
  /// The logits must stay as they are as long as they are asked about.
  void set(std::span<const float> logits);

  std::size_t top() const noexcept { return top_; }  ///< the most likely token, the first of equals
  double log_probability(std::size_t token) const { return static_cast<double>(logits_[token]) - log_sum_; }
  /// KL(this || other) in nats, never negative; infinite where logits are not numbers. REQUIRES: as many logits.
  double divergence_of(const Prediction& other) const;

 private:
  std::span<const float> logits_;
  std::vector<float> probabilities_;  ///< up to a common factor
  std::size_t top_ = 0;
  double total_ = 0;    ///< sum of the probabilities
  double log_sum_ = 0;  ///< log of the sum of the exponentials of all logits
};

}  // namespace imago::lm
