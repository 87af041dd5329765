#pragma once

// What a scheme means for a matrix of given rows and columns.

#include <cstddef>
#include <span>

#include "imago/codec.h"

namespace imago {

/// `count` scales, each for `group` weights that follow each other. Both 0 where the type has no scales.
struct ScaleLayout {
  std::size_t count = 0;
  std::size_t group = 0;
  bool operator==(const ScaleLayout&) const = default;
};

/// `scheme` with the fields it does not read at their defaults, so that equal meanings compare equal.
/// Throws UsageError for a scheme without meaning.
Scheme checked_scheme(const Scheme& scheme);

/// Throws ShapeError if rows of `cols` weights do not fit the block or the group. REQUIRES: a checked scheme.
ScaleLayout scale_layout(const Scheme& scheme, std::size_t rows, std::size_t cols);

/// float32 with its master: the one scheme that has no version.
bool is_master(const Scheme& scheme) noexcept;

/// Scales are finite and not negative; 0 stands for 1. Throws UsageError for any other.
void check_scale(float scale);

/// Throws ShapeError if `codes` are not the bytes of `count` weights, UsageError if they hold what no encoder writes:
/// bits set behind the last weight, or the ternary code 10. The code types alone are checked, not block formats.
void check_codes(Format format, std::size_t count, std::span<const std::byte> codes);

}  // namespace imago
