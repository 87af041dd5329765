#pragma once

// Sums over the rows of a batch: gradients of biases and norms.

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "base/parallel.h"

namespace imago::layers {

/// sums[c] += Σ value(row, c) over `rows` rows. Each sum runs in the order of the rows, in double, on one thread.
template <class Value>
void add_column_sums(std::size_t rows, std::span<float> sums, Value&& value) {
  constexpr std::size_t kColumns = 64;             // in work at a time; whole cache lines, so no two threads share one
  constexpr std::size_t kValuesPerThread = 16384;  // some 10 µs of adding
  const std::size_t chunks = (sums.size() + kColumns - 1) / kColumns;
  const std::size_t grain = kValuesPerThread / (rows * kColumns + 1) + 1;
  parallel_for(chunks, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t chunk = begin; chunk < end; ++chunk) {
      const std::size_t first = chunk * kColumns;
      const std::size_t count = std::min(kColumns, sums.size() - first);
      std::array<double, kColumns> totals{};
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t c = 0; c < count; ++c) totals[c] += static_cast<double>(value(row, first + c));
      }
      for (std::size_t c = 0; c < count; ++c) sums[first + c] += static_cast<float>(totals[c]);
    }
  });
}

}  // namespace imago::layers
