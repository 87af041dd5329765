#include "guided/feedback.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/parallel.h"
#include "imago/error.h"
#include "math/products.h"

namespace imago::guided {

namespace {

/// Of the mean square of all columns. Products of a text are not those of every text, and columns that hardly vary
/// would otherwise be asked to make up for everything. GPTQ is commonly run with 0.01; on another text than that of the
/// calibration, 0.1 to 0.3 leave 2 % less divergence than that, and 1 nothing less.
constexpr double kDamping = 0.2;
/// Of a table that is looked up in: what it adds to the diagonal stands for the rows themselves.
constexpr double kTableDamping = 1;
constexpr std::size_t kTile = 128;

/// A symmetric matrix by tiles, the lower half of them; replaced by its Cholesky factor.
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

  /// False if the matrix is not positive definite; its values are then lost.
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

/// Upper times its transpose is lower times its transpose with columns in reverse order: row and column i of the result
/// are n - 1 - i here. None if more damping is needed.
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
  if (mean == 0) mean = 1;  // nothing was seen: columns are as good as unrelated
  std::optional<TiledMatrix> lower;
  // Each round adds ten times as much; from 100 times the mean on the diagonal alone decides.
  for (double damping = statistics.is_table ? kTableDamping : kDamping; !lower; damping *= 10) {
    if (damping > 1e6) throw UsageError("the calibration has products that are no products of columns");
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

}  // namespace imago::guided
