#pragma once

// Some rows of a matrix on their way to codes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "guided/feedback.h"
#include "guided/levels.h"
#include "guided/rounding_grid.h"

namespace imago::guided {

/// What all strips of a matrix share.
struct StripSource {
  const InputStatistics& inputs;
  const Feedback& feedback;
  std::span<const float> importance;  ///< one per column
  const Levels& levels;
};

struct Strip {
  Strip(const StripSource& shared, std::span<const float> weights_of_rows, std::size_t row_count,
        RoundingGrid& its_grid)
      : source(shared),
        weights(weights_of_rows),
        rows(row_count),
        cols(shared.feedback.columns()),
        grid(its_grid),
        errors(rows * cols),
        places(rows * cols) {}

  std::size_t panels() const noexcept { return (cols + Feedback::kPanel - 1) / Feedback::kPanel; }
  std::size_t group_of(std::size_t row, std::size_t column) const noexcept {
    return (row * cols + column) / scales.group;
  }

  /// Takes the code nearest to `wanted`; returns the error that the weight has then.
  float round(std::size_t row, std::size_t column, float wanted) {
    const std::size_t group = group_of(row, column);
    const float scale = scales.scales[group], offset = scales.offsets[group];
    const std::size_t place = source.levels.nearest(scale == 0 ? 0 : (wanted + offset) / scale);
    places[row * cols + column] = static_cast<std::uint8_t>(place);
    return weights[row * cols + column] - (scale * source.levels.value(place) - offset);
  }

  const StripSource& source;
  std::span<const float> weights;  ///< [rows][cols]
  std::size_t rows, cols;
  RoundingGrid& grid;
  StripScales scales;
  std::vector<float> errors;         ///< weights less their values, [cols][rows]
  std::vector<std::uint8_t> places;  ///< among the levels, [rows][cols]
};

}  // namespace imago::guided
