#pragma once

// Rotary positions of a model: how fast each pair turns, and tables of cosines and sines that grow with the sequences.

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>

#include "kernels/ops.h"
#include "models/traits.h"

namespace imago::lm {

/// `divisors`: rope_freqs of GGUF files, one per pair, or empty. If given, they replace all other
/// scaling. Throws UsageError if their number is wrong or one is not positive.
kernels::RopeSettings rope_settings(const models::Traits& traits, std::span<const float> divisors);

/// Tables shared by the sequences of a model. Safe from many threads.
class RopeTables {
 public:
  explicit RopeTables(kernels::RopeSettings settings) : settings_(std::move(settings)) {}
  /// A table of at least that many positions.
  std::shared_ptr<const kernels::RopeTable> with(std::size_t positions) const;

 private:
  kernels::RopeSettings settings_;
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const kernels::RopeTable> table_;
};

}  // namespace imago::lm
