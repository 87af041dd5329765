#pragma once

// How a line of work is cut for threads that are not equally fast.

#include <cstddef>

namespace imago::kernels {

/// A long stretch for each thread, and what is left in short ones for whoever is done first: a core that shares its
/// memory or its clock with others is behind by a few percent, and everybody waits for the last. The long ones come
/// first; a thread that takes one stretch after the other mostly goes on where it was.
class Stretches {
 public:
  struct Range {
    std::size_t begin, end;
  };

  /// `shortest`: not worth cutting further.
  Stretches(std::size_t length, std::size_t threads, std::size_t shortest) noexcept
      : length_(length), threads_(threads), short_ones_(length / threads / 4 / shortest) {
    if (short_ones_ > kMostShortOnes) short_ones_ = kMostShortOnes;
    if (threads == 1) short_ones_ = 0;
  }

  std::size_t count() const noexcept { return threads_ * (1 + short_ones_); }

  /// The i-th. Together they are [0, length).
  Range operator[](std::size_t i) const noexcept {
    const std::size_t thread = i % threads_, rank = i / threads_;
    const std::size_t begin = cut(thread), end = cut(thread + 1);
    if (short_ones_ == 0) return {begin, end};
    const std::size_t rest = (end - begin) / 4, first_short = end - rest;
    const auto place = [&](std::size_t n) { return first_short + rest * n / short_ones_; };
    return rank == 0 ? Range{begin, first_short} : Range{place(rank - 1), place(rank)};
  }

 private:
  static constexpr std::size_t kMostShortOnes = 6;  ///< of a thread

  std::size_t cut(std::size_t thread) const noexcept {
    return length_ / threads_ * thread + length_ % threads_ * thread / threads_;
  }

  std::size_t length_, threads_, short_ones_;
};

}  // namespace imago::kernels
