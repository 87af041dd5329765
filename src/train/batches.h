#pragma once

// Which examples go together, and in which order. All of it is a function of the seed, so training can resume
// at any step without remembering how it got there.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "imago/train.h"

namespace imago {

/// Puts `order` into one of its orders, all equally likely: Fisher and Yates from the end. The random number of index i
/// is derive_seed(seed, i) of weights/random.h, splitmix64, so the order is the same on every machine.
void shuffle(std::span<std::size_t> order, std::uint64_t seed);

/// Seeds of what is drawn from that of a run: the split, the order of an epoch, what layers draw in a step.
std::uint64_t split_seed(std::uint64_t seed) noexcept;
std::uint64_t epoch_seed(std::uint64_t seed, std::uint64_t epoch) noexcept;
std::uint64_t step_seed(std::uint64_t seed, std::uint64_t step) noexcept;

/// Examples to train with and examples to judge by; both ascending.
struct Split {
  std::vector<std::size_t> training, validation;
};
/// round(share · count) examples from the end of a shuffled order are for validation, at least one if share > 0.
/// Throws UsageError for a share outside [0, 1) or one that leaves nothing to train with.
Split split_examples(std::size_t count, double share, std::uint64_t seed);

/// Throws ShapeError unless x and y have the same number of examples, UsageError if that is 0.
void check_dataset(const Dataset& data);

/// The examples `indices` of `from`, one after the other. `to` keeps its memory when shapes repeat. REQUIRES: each
/// index is below the first extent of `from`.
void gather_examples(const Tensor<float>& from, std::span<const std::size_t> indices, Tensor<float>& to);

}  // namespace imago
