#pragma once

// The sizes of operations: checked, and how much of them is worth a thread.

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

#include "imago/error.h"

namespace imago::kernels {

/// Values worth a thread: at some 10 values per nanosecond, less would take no longer than waking one.
inline constexpr std::size_t kGrain = 32768;

/// Throws ShapeError, naming the operation and its argument.
inline void check_size(std::string_view operation, std::string_view what, std::size_t size, std::size_t wanted) {
  if (size != wanted) {
    throw ShapeError(fmt::format("[{}] {} has {} values, not {}", operation, what, size, wanted));
  }
}

/// Throws ShapeError unless they are whole rows.
inline std::size_t rows_of(std::string_view operation, std::size_t size, std::size_t cols) {
  if (cols == 0 || size % cols != 0) {
    throw ShapeError(fmt::format("[{}] {} values are not whole rows of {}", operation, size, cols));
  }
  return size / cols;
}

}  // namespace imago::kernels
