#include "guided/compensate.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "guided/descent.h"
#include "guided/importance.h"
#include "guided/level_lanes.h"
#include "guided/strip.h"
#include "math/products.h"
#include "quant/scheme.h"

namespace imago::guided {

namespace {

/// Rows that a thread rounds together: enough for the products of matrices, and few enough that a panel of them stays
/// near. A multiple of 8, so that strips begin at whole bytes.
constexpr std::size_t kStripRows = 32;
/// Times that all codes and scales are looked at again. Four take off 9 to 11 % of the error of the outputs; four more
/// would take another 0.1 to 0.3 % for nearly twice the time.
constexpr int kSweeps = 4;

/// All columns in order, each from where the errors of those before have moved it.
class StripRounder {
 public:
  explicit StripRounder(Strip& strip) : strip_(strip), feedback_(strip.source.feedback), levels_(strip.source.levels) {}

  void run() {
    RoundingGrid& grid = strip_.grid;
    // Scales of rows and tensors are there before the first column.
    if (grid.unit() > Feedback::kPanel) grid.choose(0, strip_.weights, strip_.source.importance, strip_.scales);
    for (std::size_t p = 0; p < strip_.panels(); ++p) round_panel(p);
  }

 private:
  void round_panel(std::size_t p) {
    const std::size_t rows = strip_.rows, first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    current_.resize(rows * width);
    for (std::size_t row = 0; row < rows; ++row) {
      std::copy_n(strip_.weights.data() + row * strip_.cols + first, width, current_.data() + row * width);
    }
    if (first != 0) {
      math::gemm({.m = rows, .n = width, .k = first, .a = math::Transpose::yes},
                 std::span<const float>(strip_.errors).first(first * rows), feedback_.panel(p).first(first * width),
                 current_, math::Write::add);
    }
    const std::size_t unit = std::min(strip_.grid.unit(), width);
    for (std::size_t at = 0; at < width; at += unit) {
      if (strip_.grid.unit() <= Feedback::kPanel) choose_scales(first, width, at, unit);
      for (std::size_t row = 0; row < rows; ++row) round_row(p, row, at, unit);
    }
  }

  void choose_scales(std::size_t first, std::size_t width, std::size_t at, std::size_t count) {
    unit_.resize(strip_.rows * count);
    for (std::size_t row = 0; row < strip_.rows; ++row) {
      std::copy_n(current_.data() + row * width + at, count, unit_.data() + row * count);
    }
    strip_.grid.choose(first + at, unit_, strip_.source.importance.subspan(first + at, count), strip_.scales);
  }

  void round_row(std::size_t p, std::size_t row, std::size_t at, std::size_t count) {
    const std::size_t first = p * Feedback::kPanel, width = feedback_.panel_width(p);
    const float* feedback = feedback_.panel(p).data() + first * width;
    float* current = current_.data() + row * width;
    for (std::size_t i = at; i < at + count; ++i) {
      if (i != at && i % strip_.scales.group == 0) refresh_scales(row, first + i, current + i);
      const float error = strip_.round(row, first + i, current[i]);
      strip_.errors[(first + i) * strip_.rows + row] = error;
      const float* factors = feedback + i * width;
      for (std::size_t k = i + 1; k < width; ++k) current[k] += error * factors[k];
    }
  }

  /// The scales of a block are chosen together, before its first column; by the turn of a later group its weights have
  /// moved. What lies near the chosen ones is tried again.
  void refresh_scales(std::size_t row, std::size_t column, const float* current) {
    const RoundingGrid& grid = strip_.grid;
    if (!grid.adjusts_scales()) return;
    const std::size_t group = strip_.group_of(row, column);
    float &scale = strip_.scales.scales[group], &offset = strip_.scales.offsets[group];
    const float chosen = scale, chosen_offset = offset;
    float least = std::numeric_limits<float>::infinity();
    Four scales, offsets;
    std::size_t waiting = 0;
    const auto compare = [&] {
      const Four errors = group_errors(column, current, scales, offsets);
      const std::size_t count = std::exchange(waiting, 0);
      for (std::size_t i = 0; i < count; ++i) {
        if (errors[i] >= least) continue;
        least = errors[i];
        scale = scales[i];
        offset = offsets[i];
      }
    };
    const auto consider = [&](float some_scale, float some_offset) {
      scales[waiting] = some_scale;
      offsets[waiting] = some_offset;
      if (++waiting == scales.size()) compare();
    };
    consider(chosen, chosen_offset);  // first: it stays where others are no better
    if (!grid.adjusts_offsets()) {
      for (const float factor : {0.8f, 0.85f, 0.9f, 0.95f, 1.05f, 1.1f, 1.15f, 1.2f}) {
        consider(grid.nearest_scale(row, column, chosen * factor), chosen_offset);
      }
    } else {
      constexpr float kFactors[] = {0.8f, 0.9f, 1.0f, 1.1f, 1.2f};
      for (const float factor : kFactors) {
        const float some_scale = grid.nearest_scale(row, column, chosen * factor);
        for (const float other : kFactors) {
          consider(some_scale, grid.nearest_offset(row, column, chosen_offset * other));
        }
      }
    }
    if (waiting == 0) return;
    for (std::size_t i = waiting; i < scales.size(); ++i) scales[i] = chosen, offsets[i] = chosen_offset;
    compare();
  }

  Four group_errors(std::size_t column, const float* current, const Four& scales, const Four& offsets) const {
    using Lanes = LevelLanes::Lanes;
    const Lanes scale = LevelLanes::load(scales), offset = LevelLanes::load(offsets), zero{};
    Lanes sum{};
    for (std::size_t k = 0; k < strip_.scales.group; ++k) {
      const Lanes steps = (current[k] + offset) / scale;
      const Lanes value = levels_.nearest_values(scale == zero ? zero : steps);
      const Lanes error = current[k] - (scale * value - offset);
      sum += strip_.source.importance[column + k] * error * error;
    }
    return {sum[0], sum[1], sum[2], sum[3]};
  }

  Strip& strip_;
  const Feedback& feedback_;
  LevelLanes levels_;
  std::vector<float> current_, unit_;
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
  const StripSource source{inputs, feedback, importance, grid_format.levels()};
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
    Strip strip(source, weights.subspan(begin * cols, count * cols), count, *grid);
    StripRounder(strip).run();
    Descent descent(strip);
    for (int sweep = 0; sweep < kSweeps; ++sweep) descent.sweep();
    grid->store(strip.places, strip.scales);
  });
  return encoded;
}

}  // namespace imago::guided
