#pragma once

// A type as error-compensating rounding sees it: scales are chosen for some columns at a time, codes one by one. A
// strip is a number of rows that are rounded together.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "guided/block_bits.h"
#include "guided/compensate.h"
#include "guided/levels.h"
#include "imago/weights.h"

namespace imago::guided {

/// The scales of a strip: value = scale · level - offset.
struct StripScales {
  std::size_t group = 0;               ///< columns per scale
  std::vector<float> scales, offsets;  ///< [rows][columns / group]; without offsets: zeros

  std::vector<float>& of(ScaleBits::Part part) noexcept { return part == ScaleBits::Part::scale ? scales : offsets; }
  const std::vector<float>& of(ScaleBits::Part part) const noexcept {
    return part == ScaleBits::Part::scale ? scales : offsets;
  }
};

/// Writes one strip. Not thread-safe, but strips are independent.
class RoundingGrid {
 public:
  using Part = ScaleBits::Part;

  virtual ~RoundingGrid() = default;
  /// Columns whose scales are chosen together.
  virtual std::size_t unit() const noexcept = 0;
  /// Whether the scale (offset) of a single group can be replaced.
  virtual bool adjusts(Part part) const noexcept = 0;
  /// The nearest scale (offset) to `wanted` that the group at a column can have. REQUIRES: its scales were chosen, and
  /// adjusts(part).
  virtual float nearest(Part part, std::size_t row, std::size_t column, float wanted) const = 0;
  /// Finds the scales of columns `first` … from `weights`, [rows][count], and writes them into `scales`.
  virtual void choose(std::size_t first, std::span<const float> weights, std::span<const float> importance,
                      StripScales& scales) = 0;
  /// Writes the codes, given as indices of levels, [rows][columns], and the scales, each chosen or from nearest().
  virtual void store(std::span<const std::uint8_t> places, const StripScales& scales) = 0;

 protected:
  RoundingGrid() = default;
  RoundingGrid(const RoundingGrid&) = default;
  RoundingGrid& operator=(const RoundingGrid&) = default;
};

/// What all strips of a matrix share.
class GridFormat {
 public:
  /// REQUIRES: a checked scheme of a type that can be compensated.
  GridFormat(const Scheme& scheme, std::size_t columns);

  const Levels& levels() const noexcept { return levels_; }
  /// A grid that writes the `codes` of `rows` rows and the `scales` and `zero_points` of a dtype; the latter are as
  /// many as the scales, or none. Those of rows and tensors must be set already.
  std::unique_ptr<RoundingGrid> strip(std::size_t rows, std::span<std::byte> codes, std::span<float> scales,
                                      std::span<float> zero_points = {}) const;

 private:
  Scheme scheme_;
  std::size_t columns_;
  std::optional<CodeBits> bits_;
  std::vector<ScaleBits> part_bits_;  ///< of scales and offsets, for block formats
  Levels levels_;
};

/// What all strips of a matrix share.
struct StripSource {
  const InputStatistics& inputs;
  const Feedback& feedback;
  std::span<const float> importance;  ///< one per column
  const Levels& levels;
};

struct Strip {
  std::size_t panels() const noexcept { return (cols + Feedback::kPanel - 1) / Feedback::kPanel; }
  std::size_t group_of(std::size_t row, std::size_t column) const noexcept {
    return (row * cols + column) / scales.group;
  }

  /// Takes the code nearest to `wanted`; returns the resulting error of the weight.
  float round(std::size_t row, std::size_t column, float wanted) {
    const std::size_t group = group_of(row, column);
    const float scale = scales.scales[group], offset = scales.offsets[group];
    const std::size_t place = source.levels.nearest(scale == 0 ? 0 : (wanted + offset) / scale);
    places[row * cols + column] = static_cast<std::uint8_t>(place);
    return weights[row * cols + column] - (scale * source.levels.value(place) - offset);
  }

  const StripSource& source;
  std::span<const float> weights;  ///< [rows][cols]
  std::size_t rows;
  RoundingGrid& grid;
  std::size_t cols = source.feedback.columns();
  StripScales scales = {};
  std::vector<float> errors = std::vector<float>(rows * cols);  ///< weights minus their values, [cols][rows]
  std::vector<std::uint8_t> places = std::vector<std::uint8_t>(rows * cols);  ///< indices of levels, [rows][cols]
};

}  // namespace imago::guided
