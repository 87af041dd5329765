#include "guided/compensate.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "guided/descent.h"
#include "guided/importance.h"
#include "guided/levels.h"
#include "guided/rounding_grid.h"
#include "imago/error.h"
#include "math/products.h"
#include "quant/scheme.h"

namespace imago::guided {

namespace {

/// Share of the mean square of all columns. The products depend on the text, and without damping, columns that hardly
/// vary would compensate for everything. GPTQ commonly uses 0.01; on a text other than that of the calibration, 0.1 to
/// 0.3 give 2 % less divergence than 0.01, and 1 gives no improvement.
constexpr double kDamping = 0.2;
/// For an embedding table: the diagonal then accounts for the error of the rows themselves.
constexpr double kTableDamping = 1;
constexpr std::size_t kTile = 128;

/// The lower half of a symmetric matrix in tiles; replaced by its Cholesky factor.
class TiledMatrix {
 public:
  explicit TiledMatrix(std::size_t size)
      : size_(size), tiles_((size + kTile - 1) / kTile), values_(tiles_ * (tiles_ + 1) / 2) {
    for (std::size_t i = 0; i < tiles_; ++i) {
      for (std::size_t j = 0; j <= i; ++j) tile(i, j).resize(extent(i) * extent(j));
    }
  }

  /// REQUIRES: j <= i.
  float& at(std::size_t i, std::size_t j) {
    return tile(i / kTile, j / kTile)[i % kTile * extent(j / kTile) + j % kTile];
  }

  /// Returns false, with the values destroyed, if the matrix is not positive definite.
  bool factorize() {
    for (std::size_t j = 0; j < tiles_; ++j) {
      parallel_for_dynamic(tiles_ - j, 1, [&](std::size_t task, std::size_t) { subtract_earlier(j + task, j); });
      if (!factorize_diagonal(j)) return false;
      parallel_for_dynamic(tiles_ - j - 1, 1, [&](std::size_t task, std::size_t) { solve(j + 1 + task, j); });
    }
    return true;
  }

 private:
  std::size_t extent(std::size_t tile) const { return std::min(kTile, size_ - tile * kTile); }
  std::vector<float>& tile(std::size_t i, std::size_t j) { return values_[i * (i + 1) / 2 + j]; }

  void subtract_earlier(std::size_t i, std::size_t j) {
    if (j == 0) return;
    std::vector<float> sum(extent(i) * extent(j));
    for (std::size_t k = 0; k < j; ++k) {
      math::gemm({.m = extent(i), .n = extent(j), .k = extent(k), .b = math::Transpose::yes}, tile(i, k), tile(j, k),
                 sum, math::Write::add);
    }
    std::vector<float>& out = tile(i, j);
    for (std::size_t place = 0; place < out.size(); ++place) out[place] -= sum[place];
  }

  bool factorize_diagonal(std::size_t t) {
    std::vector<float>& a = tile(t, t);
    const std::size_t n = extent(t);
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t i = j; i < n; ++i) {
        double sum = static_cast<double>(a[i * n + j]);
        for (std::size_t k = 0; k < j; ++k) {
          sum -= static_cast<double>(a[i * n + k]) * static_cast<double>(a[j * n + k]);
        }
        if (i == j) {
          if (!(sum > 0) || !std::isfinite(sum)) return false;
          a[j * n + j] = static_cast<float>(std::sqrt(sum));
          if (!(a[j * n + j] > 0)) return false;
        } else {
          a[i * n + j] = static_cast<float>(sum / static_cast<double>(a[j * n + j]));
        }
      }
    }
    return true;
  }

  /// Tile (i, j) ← tile (i, j) · L(j, j)⁻ᵀ.
  void solve(std::size_t i, std::size_t j) {
    std::vector<float>& a = tile(i, j);
    const std::vector<float>& l = tile(j, j);
    const std::size_t n = extent(j);
    for (std::size_t row = 0; row < extent(i); ++row) {
      float* x = a.data() + row * n;
      for (std::size_t c = 0; c < n; ++c) {
        double sum = static_cast<double>(x[c]);
        for (std::size_t k = 0; k < c; ++k) sum -= static_cast<double>(x[k]) * static_cast<double>(l[c * n + k]);
        x[c] = static_cast<float>(sum / static_cast<double>(l[c * n + c]));
      }
    }
  }

  std::size_t size_, tiles_;
  std::vector<std::vector<float>> values_;
};

/// The upper factor of H is the lower factor of H with rows and columns reversed: index i of the result is n - 1 - i
/// here. None if more damping is needed.
std::optional<TiledMatrix> factor(const InputStatistics& statistics, double damping) {
  const std::size_t n = statistics.second_moments.size();
  TiledMatrix matrix(n);
  parallel_for(n, 16, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = 0; j <= i; ++j) matrix.at(i, j) = statistics.products[(n - 1 - i) * n + (n - 1 - j)];
      matrix.at(i, i) += static_cast<float>(damping);
    }
  });
  if (!matrix.factorize()) return std::nullopt;
  return matrix;
}

}  // namespace

Feedback::Feedback(const InputStatistics& statistics) {
  const std::size_t n = statistics.second_moments.size();
  if (n == 0 || statistics.products.size() != n * n) {
    throw UsageError(
        "error-compensating rounding needs the products of columns, and the calibration has none: calibrate with "
        "--products");
  }
  double mean = 0;
  for (std::size_t i = 0; i < n; ++i) mean += static_cast<double>(statistics.products[i * n + i]);
  mean /= static_cast<double>(n);
  if (!std::isfinite(mean) || mean < 0) throw UsageError("the calibration has products that are not finite");
  if (mean == 0) mean = 1;  // all inputs were 0: treat columns as uncorrelated
  std::optional<TiledMatrix> lower;
  // Each round damps ten times as much; beyond 100 times the mean only the diagonal matters.
  for (double damping = statistics.is_table ? kTableDamping : kDamping; !lower; damping *= 10) {
    if (damping > 1e6) throw UsageError("the calibration has invalid products: they are not positive definite");
    lower = factor(statistics, damping * mean);
    damping_ = static_cast<float>(damping * mean);
  }
  pivots_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    const float root = lower->at(n - 1 - i, n - 1 - i);
    pivots_[i] = root * root;
  }
  panels_.resize((n + kPanel - 1) / kPanel);
  parallel_for_dynamic(panels_.size(), 1, [&](std::size_t p, std::size_t) {
    const std::size_t width = panel_width(p), first = p * kPanel;
    panels_[p].resize((first + width) * width);
    for (std::size_t k = first; k < first + width; ++k) {
      const float inverse = 1 / lower->at(n - 1 - k, n - 1 - k);
      for (std::size_t i = 0; i < k; ++i) panels_[p][i * width + k - first] = lower->at(n - 1 - i, n - 1 - k) * inverse;
    }
  });
}

std::size_t Feedback::panel_width(std::size_t p) const noexcept {
  return std::min(kPanel, pivots_.size() - p * kPanel);
}

namespace {

/// Rows that a thread rounds together: enough for efficient matrix products, few enough that a panel of them stays in
/// cache. A multiple of 8, so that strips begin at whole bytes.
constexpr std::size_t kStripRows = 32;
/// Sweeps of Descent. Four lower the error of the outputs by 9 to 11 %; four more would give another 0.1 to 0.3 % for
/// nearly twice the time.
constexpr int kSweeps = 4;

/// Rounds all columns in order, each with the feedback of those before it.
class StripRounder {
  using Part = RoundingGrid::Part;

 public:
  explicit StripRounder(Strip& strip) : strip_(strip), feedback_(strip.source.feedback), levels_(strip.source.levels) {}

  void run() {
    RoundingGrid& grid = strip_.grid;
    // Scales of rows and tensors exist before the first column is rounded.
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

  /// The scales of a block are chosen together, before its first column; when a later group is rounded, its weights
  /// have moved, so scales near the chosen one are tried.
  void refresh_scales(std::size_t row, std::size_t column, const float* current) {
    const RoundingGrid& grid = strip_.grid;
    if (!grid.adjusts(Part::scale)) return;
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
    consider(chosen, chosen_offset);  // first, so that it wins ties
    if (!grid.adjusts(Part::offset)) {
      for (const float factor : {0.8f, 0.85f, 0.9f, 0.95f, 1.05f, 1.1f, 1.15f, 1.2f}) {
        consider(grid.nearest(Part::scale, row, column, chosen * factor), chosen_offset);
      }
    } else {
      constexpr float kFactors[] = {0.8f, 0.9f, 1.0f, 1.1f, 1.2f};
      for (const float factor : kFactors) {
        const float some_scale = grid.nearest(Part::scale, row, column, chosen * factor);
        for (const float other : kFactors) {
          consider(some_scale, grid.nearest(Part::offset, row, column, chosen_offset * other));
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

bool can_compensate(Format format) {
  return format.has_scales() ? format.bits() <= 8 : CodeBits::of(format).has_value();
}

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
  const bool chosen_here = scheme.granularity == Granularity::group || layout.count == 0;
  encoded.set_scales(chosen_here ? ScaleValues{std::vector<float>(layout.count), {}}
                                 : weighted_scales(weights, cols, scheme, layout, importance),
                     layout.group);
  if (has_zero_points(scheme)) encoded.zero_points.resize(layout.count);
  parallel_for_dynamic(rows, kStripRows, [&](std::size_t begin, std::size_t end) {
    const std::size_t count = end - begin;
    const std::size_t per_row = scheme.granularity == Granularity::tensor ? 0 : layout.count / rows;
    const auto of_strip = [&](std::span<float> all) {
      return per_row == 0 || all.empty() ? all : all.subspan(begin * per_row, count * per_row);
    };
    const auto grid = grid_format.strip(
        count, std::span(encoded.codes).subspan(packed_bytes(format, begin * cols), packed_bytes(format, count * cols)),
        of_strip(encoded.scales), of_strip(encoded.zero_points));
    Strip strip{source, weights.subspan(begin * cols, count * cols), count, *grid};
    StripRounder(strip).run();
    Descent descent(strip);
    for (int sweep = 0; sweep < kSweeps; ++sweep) descent.sweep();
    grid->store(strip.places, strip.scales);
  });
  return encoded;
}

}  // namespace imago::guided
