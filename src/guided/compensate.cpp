#include "guided/compensate.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "guided/importance.h"
#include "guided/rounding_grid.h"
#include "math/products.h"
#include "weights/scheme.h"

namespace imago::guided {

namespace {

/// Rows that a thread rounds together: enough for the products of matrices, and few enough that a panel of them stays
/// near. A multiple of 8, so that strips begin at whole bytes.
constexpr std::size_t kStripRows = 32;
/// Times that all codes of a row, and the scales of its groups, are looked at again, each with all others fixed. The
/// first two take off some 7 % of the error, the next two 1.5 %, four more half of that.
constexpr int kSweeps = 4;

class StripRounder {
 public:
  StripRounder(std::span<const float> weights, std::size_t rows, const InputStatistics& inputs,
               const Feedback& feedback, std::span<const float> importance, const Levels& levels, RoundingGrid& grid)
      : weights_(weights),
        rows_(rows),
        cols_(feedback.columns()),
        inputs_(inputs),
        feedback_(feedback),
        importance_(importance),
        levels_(levels),
        grid_(grid),
        errors_(rows * cols_),
        places_(rows * cols_) {}

  void run() {
    // Scales of rows and tensors are there before the first column.
    if (grid_.unit() > Feedback::kPanel) grid_.choose(0, weights_, importance_, scales_);
    for (std::size_t p = 0; p < panels(); ++p) round_panel(p);
    for (int sweep = 0; sweep < kSweeps; ++sweep) {
      for (std::size_t p = 0; p < panels(); ++p) improve_panel(p);
    }
    grid_.store(places_, scales_);
  }

 private:
  std::size_t panels() const noexcept { return (cols_ + Feedback::kPanel - 1) / Feedback::kPanel; }

  // ---- first all columns in order, each from where the errors of those before have moved it

  void round_panel(std::size_t p) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    const std::span<const float> panel = feedback_.panel(p);
    current_.resize(rows_ * width);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::copy_n(weights_.data() + row * cols_ + first, width, current_.data() + row * width);
    }
    if (first != 0) {
      math::gemm({.m = rows_, .n = width, .k = first, .a = math::Transpose::yes},
                 std::span<const float>(errors_).first(first * rows_), panel.first(first * width), current_,
                 math::Write::add);
    }
    const std::size_t unit = std::min(grid_.unit(), width);
    for (std::size_t at = 0; at < width; at += unit) {
      if (grid_.unit() <= Feedback::kPanel) choose_scales(p, at, unit);
      for (std::size_t row = 0; row < rows_; ++row) round_row(p, row, at, unit);
    }
  }

  void choose_scales(std::size_t p, std::size_t at, std::size_t count) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    unit_.resize(rows_ * count);
    for (std::size_t row = 0; row < rows_; ++row) {
      std::copy_n(current_.data() + row * width + at, count, unit_.data() + row * count);
    }
    grid_.choose(first + at, unit_, importance_.subspan(first + at, count), scales_);
  }

  void round_row(std::size_t p, std::size_t row, std::size_t at, std::size_t count) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    const float* feedback = feedback_.panel(p).data() + first * width;
    float* current = current_.data() + row * width;
    for (std::size_t i = at; i < at + count; ++i) {
      if (i != at && i % scales_.group == 0 && grid_.adjusts_scales()) refresh_scale(row, first + i, current + i);
      const float error = round(row, first + i, current[i]);
      errors_[(first + i) * rows_ + row] = error;
      const float* factors = feedback + i * width;
      for (std::size_t k = i + 1; k < width; ++k) current[k] += error * factors[k];
    }
  }

  /// The scales of a block are chosen together, before its first column; by the turn of a later group its weights have
  /// moved.
  void refresh_scale(std::size_t row, std::size_t column, const float* current) {
    const std::size_t group = (row * cols_ + column) / scales_.group;
    float& scale = scales_.scales[group];
    const float chosen = scale;
    float least = group_error(column, current, scale, scales_.offsets[group]);
    for (const float factor : {0.8f, 0.85f, 0.9f, 0.95f, 1.05f, 1.1f, 1.15f, 1.2f}) {
      const float candidate = grid_.nearest_scale(row, column, chosen * factor);
      if (candidate == scale) continue;
      const float error = group_error(column, current, candidate, scales_.offsets[group]);
      if (error < least) {
        least = error;
        scale = candidate;
      }
    }
  }

  float group_error(std::size_t column, const float* current, float scale, float offset) const {
    float sum = 0;
    for (std::size_t k = 0; k < scales_.group; ++k) {
      const std::size_t place = levels_.nearest(scale == 0 ? 0 : (current[k] + offset) / scale);
      const float error = current[k] - (scale * levels_.value(place) - offset);
      sum += importance_[column + k] * error * error;
    }
    return sum;
  }

  /// Takes the code nearest to `wanted`; returns the error of the weight.
  float round(std::size_t row, std::size_t column, float wanted) {
    const std::size_t group = (row * cols_ + column) / scales_.group;
    const float scale = scales_.scales[group], offset = scales_.offsets[group];
    const std::size_t place = levels_.nearest(scale == 0 ? 0 : (wanted + offset) / scale);
    places_[row * cols_ + column] = static_cast<std::uint8_t>(place);
    return weights_[row * cols_ + column] - (scale * levels_.value(place) - offset);
  }

  // ---- then each column with all others fixed, those behind it too

  void improve_panel(std::size_t p) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    // What the outputs' error changes by with the error of each column: e · H.
    current_.resize(rows_ * width);
    math::gemm({.m = rows_, .n = width, .k = cols_, .a = math::Transpose::yes, .b = math::Transpose::yes}, errors_,
               std::span<const float>(inputs_.products).subspan(first * cols_, width * cols_), current_);
    for (std::size_t row = 0; row < rows_; ++row) {
      for (std::size_t i = 0; i < width; ++i) improve(row, first, i, width);
      for (std::size_t i = 0; i < width; i += scales_.group) {
        if (grid_.adjusts_scales()) improve_scale(row, first, i, width);
        if (grid_.adjusts_offsets()) improve_offset(row, first, i, width);
      }
    }
  }

  void improve(std::size_t row, std::size_t first, std::size_t i, std::size_t width) {
    const std::size_t column = first + i;
    float& error = errors_[column * rows_ + row];
    const float slope = current_[row * width + i] + feedback_.damping() * error;
    const float curvature = inputs_.products[column * cols_ + column] + feedback_.damping();
    const float wanted = weights_[row * cols_ + column] - error + slope / curvature;
    const float change = round(row, column, wanted) - error;
    if (change == 0) return;
    error += change;
    const float* products = inputs_.products.data() + column * cols_ + first;
    float* slopes = current_.data() + row * width;
    for (std::size_t k = 0; k < width; ++k) slopes[k] += change * products[k];
  }

  /// The best scale of the group that begins at column `i` of the panel, codes fixed; then its best offset.
  void improve_scale(std::size_t row, std::size_t first, std::size_t i, std::size_t width) {
    const std::size_t begin = row * cols_ + first + i;
    direction_.resize(scales_.group);
    for (std::size_t k = 0; k < scales_.group; ++k) direction_[k] = levels_.value(places_[begin + k]);
    float& scale = scales_.scales[begin / scales_.group];
    const float wanted = scale + best_step(row, first, i, width);
    if (!std::isfinite(wanted)) return;
    const float better = grid_.nearest_scale(row, first + i, wanted);
    move(row, first, i, width, better - scale);
    scale = better;
  }

  void improve_offset(std::size_t row, std::size_t first, std::size_t i, std::size_t width) {
    const std::size_t begin = row * cols_ + first + i;
    direction_.assign(scales_.group, -1.0f);
    float& offset = scales_.offsets[begin / scales_.group];
    const float wanted = offset + best_step(row, first, i, width);
    if (!std::isfinite(wanted)) return;
    const float better = grid_.nearest_offset(row, first + i, wanted);
    move(row, first, i, width, better - offset);
    offset = better;
  }

  /// How far the values of a group should move along direction_.
  float best_step(std::size_t row, std::size_t first, std::size_t i, std::size_t width) const {
    float slope = 0, curvature = 0;
    for (std::size_t k = 0; k < direction_.size(); ++k) {
      const float* products = inputs_.products.data() + (first + i + k) * cols_ + first + i;
      float sum = feedback_.damping() * direction_[k];
      for (std::size_t l = 0; l < direction_.size(); ++l) sum += products[l] * direction_[l];
      curvature += direction_[k] * sum;
      const float error = errors_[(first + i + k) * rows_ + row];
      slope += direction_[k] * (current_[row * width + i + k] + feedback_.damping() * error);
    }
    return curvature > 0 ? slope / curvature : 0;
  }

  void move(std::size_t row, std::size_t first, std::size_t i, std::size_t width, float step) {
    if (step == 0) return;
    for (std::size_t k = 0; k < direction_.size(); ++k) {
      const std::size_t column = first + i + k;
      const float change = -step * direction_[k];
      errors_[column * rows_ + row] += change;
      const float* products = inputs_.products.data() + column * cols_ + first;
      float* slopes = current_.data() + row * width;
      for (std::size_t l = 0; l < width; ++l) slopes[l] += change * products[l];
    }
  }

  std::span<const float> weights_;
  std::size_t rows_, cols_;
  const InputStatistics& inputs_;
  const Feedback& feedback_;
  std::span<const float> importance_;
  const Levels& levels_;
  RoundingGrid& grid_;
  std::vector<float> errors_;         ///< weights less their values, [cols][rows]
  std::vector<std::uint8_t> places_;  ///< among the levels, [rows][cols]
  StripScales scales_;
  std::vector<float> current_, unit_, direction_;
};

}  // namespace

bool can_compensate(Format format) { return GridFormat::exists(format); }

EncodedMatrix encode_compensated(std::span<const float> weights, std::size_t rows, const Scheme& scheme,
                                 const InputStatistics& inputs, const Feedback& feedback) {
  const std::size_t cols = feedback.columns();
  const Format format = scheme.format;
  const ScaleLayout layout = scale_layout(scheme, rows, cols);
  const std::vector<float> importance = relative_importance(feedback.pivots());
  const GridFormat grid_format(scheme, cols);
  EncodedMatrix encoded;
  encoded.codes.resize(packed_bytes(format, weights.size()));
  encoded.scale_group = layout.group;
  encoded.scales = scheme.granularity == Granularity::group || layout.count == 0
                       ? std::vector<float>(layout.count)
                       : weighted_scales(weights, cols, scheme, layout, importance);
  parallel_for_dynamic(rows, kStripRows, [&](std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    const std::size_t per_row = scheme.granularity == Granularity::tensor ? 0 : layout.count / rows;
    const std::span<float> scales = std::span(encoded.scales);
    const auto grid = grid_format.strip(
        count, std::span(encoded.codes).subspan(packed_bytes(format, begin * cols), packed_bytes(format, count * cols)),
        per_row == 0 ? scales : scales.subspan(begin * per_row, count * per_row));
    StripRounder(weights.subspan(begin * cols, count * cols), count, inputs, feedback, importance, grid_format.levels(),
                 *grid)
        .run();
  });
  return encoded;
}

}  // namespace imago::guided
