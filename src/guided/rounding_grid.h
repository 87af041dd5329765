#pragma once

// A type as error-compensating rounding sees it: scales for some columns at a time, and codes that are chosen one by
// one.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "guided/code_bits.h"
#include "guided/levels.h"
#include "guided/scale_bits.h"
#include "imago/weights.h"

namespace imago::guided {

/// What the columns of a strip of rows are rounded to: value = scale · level - offset.
struct StripScales {
  std::size_t group = 0;               ///< columns per scale
  std::vector<float> scales, offsets;  ///< [rows][columns / group]; without offsets: zeros
};

/// One strip of rows of a matrix. Not thread-safe; strips may be made at the same time.
class RoundingGrid {
 public:
  virtual ~RoundingGrid() = default;
  /// Columns that get their scales together.
  virtual std::size_t unit() const noexcept = 0;
  /// Whether each group has a scale (an offset) of its own that may be replaced by another.
  virtual bool adjusts_scales() const noexcept = 0;
  virtual bool adjusts_offsets() const noexcept = 0;
  /// What the type can hold nearest to `wanted` as the scale (offset) of the group at a column. REQUIRES: the scales
  /// there were chosen, and adjusts_….
  virtual float nearest_scale(std::size_t row, std::size_t column, float wanted) const = 0;
  virtual float nearest_offset(std::size_t row, std::size_t column, float wanted) const = 0;
  /// Finds the scales of columns `first` … from `weights`, [rows][count], and writes them into `scales`.
  virtual void choose(std::size_t first, std::span<const float> weights, std::span<const float> importance,
                      StripScales& scales) = 0;
  /// Writes the codes: places among the levels, [rows][columns]; and the scales, which are those chosen or nearest
  /// ones.
  virtual void store(std::span<const std::uint8_t> places, const StripScales& scales) = 0;

 protected:
  RoundingGrid() = default;
  RoundingGrid(const RoundingGrid&) = default;
  RoundingGrid& operator=(const RoundingGrid&) = default;
};

/// What all strips of a matrix share.
class GridFormat {
 public:
  /// REQUIRES: a checked scheme of a type that exists here.
  GridFormat(const Scheme& scheme, std::size_t columns);
  static bool exists(Format format);

  const Levels& levels() const noexcept { return levels_; }
  /// A grid that writes `codes`, and `scales` of dtypes, of `rows` rows. Scales of rows and tensors must be there
  /// already.
  std::unique_ptr<RoundingGrid> strip(std::size_t rows, std::span<std::byte> codes, std::span<float> scales) const;

 private:
  Scheme scheme_;
  std::size_t columns_;
  std::optional<CodeBits> bits_;
  std::optional<ScaleBits> scale_bits_, offset_bits_;  ///< of block formats
  Levels levels_;
};

}  // namespace imago::guided
