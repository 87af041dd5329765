#pragma once

// What a scheme means for a matrix of given rows and columns: how many scales there are, and what they are.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "imago/codec.h"

namespace imago {

/// `count` scales, each for `group` consecutive weights. Both 0 for formats without scales of their own.
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

/// `format` where its blocks fit rows of `cols`, else the nearest with smaller blocks and no fewer bits that do; none
/// if no block fits.
std::optional<Format> fitting_type(Format format, std::size_t cols) noexcept;

/// True for float32: the one scheme that has no version, since it is the master itself.
bool is_master(const Scheme& scheme) noexcept;

/// Scales and, beside each, its zero point. All zero points are 0 where there are none.
struct ScaleValues {
  std::vector<float> scales, zero_points;

  Scales over(std::size_t group) const noexcept { return {scales, group, zero_points}; }
  /// Zero points that are all 0 are left out.
  void normalize() noexcept;
};

/// Whether `scheme` derives zero points: for unsigned integers, unless it says otherwise.
bool has_zero_points(const Scheme& scheme) noexcept;

/// The scales that `scheme` derives for `weights`, one per group of `layout`; zero points where some are not 0. Runs on
/// all threads of the pool; the scales do not depend on how many there are. REQUIRES: a checked scheme and its layout
/// for these weights.
ScaleValues derive_scales(const Scheme& scheme, const ScaleLayout& layout, std::span<const float> weights);

/// Scales are finite and not negative; 0 stands for 1. Throws UsageError for any other.
void check_scale(float scale);

/// Zero points are integers from 0 to the largest code of an unsigned type, and 0 for all other types. Throws
/// UsageError for any other.
void check_zero_point(Format format, float zero_point);

/// Throws ShapeError unless `count` weights in `format` take exactly `bytes` bytes.
void check_packed_size(Format format, std::size_t count, std::size_t bytes);

/// Throws ShapeError if `codes` are not the bytes of `count` weights, UsageError if they hold what no encoder writes:
/// bits set after the last weight, or the ternary code 10. Block formats are not checked for that.
void check_codes(Format format, std::size_t count, std::span<const std::byte> codes);

}  // namespace imago
