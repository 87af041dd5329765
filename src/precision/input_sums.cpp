#include "precision/input_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "imago/error.h"
#include "math/products.h"

namespace imago::precision {

namespace {

/// Columns whose products are one task. The symmetric half is not computed, up to the panels on the diagonal: smaller
/// panels waste less there, larger ones use each load more often.
constexpr std::size_t kPanel = 128;

}  // namespace

InputSums::InputSums(std::size_t columns, bool products)
    : columns_(columns), squares_(columns), products_(products ? columns * columns : 0) {}

void InputSums::add(std::span<const float> x, std::size_t rows) {
  parallel_for(columns_, 64, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = 0; row < rows; ++row) {
      const float* values = x.data() + row * columns_;
      for (std::size_t i = begin; i < end; ++i) {
        const double value = static_cast<double>(values[i]);
        squares_[i] += value * value;
      }
    }
  });
  if (!products_.empty()) add_products(x, rows);
  rows_ += rows;
}

bool InputSums::is_finite() const noexcept {
  return std::ranges::all_of(squares_, [&](double sum) { return std::isfinite(static_cast<float>(sum)); });
}

void InputSums::add_products(std::span<const float> x, std::size_t rows) {
  const std::size_t panels = (columns_ + kPanel - 1) / kPanel;
  const auto width = [&](std::size_t panel) { return std::min(kPanel, columns_ - panel * kPanel); };
  const auto panel_values = [&](std::size_t panel) {
    return std::span<float>(panels_).subspan(panel * kPanel * rows, width(panel) * rows);
  };
  panels_.resize(columns_ * rows);
  parallel_for(panels, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t panel = begin; panel < end; ++panel) {
      const std::span<float> out = panel_values(panel);
      for (std::size_t row = 0; row < rows; ++row) {
        std::copy_n(x.data() + row * columns_ + panel * kPanel, width(panel), out.data() + row * width(panel));
      }
    }
  });
  // A sum over a batch is float32; each place of the totals belongs to one task.
  parallel_for_dynamic(panels * panels, 1, [&](std::size_t task, std::size_t) {
    const std::size_t above = task / panels, left = task % panels;
    if (left < above) return;
    std::vector<float> tile(width(above) * width(left));
    math::gemm({.m = width(above), .n = width(left), .k = rows, .a = math::Transpose::yes}, panel_values(above),
               panel_values(left), tile);
    for (std::size_t i = 0; i < width(above); ++i) {
      float* total = products_.data() + (above * kPanel + i) * columns_ + left * kPanel;
      for (std::size_t j = 0; j < width(left); ++j) total[j] += tile[i * width(left) + j];
    }
  });
}

guided::InputStatistics InputSums::statistics() const {
  guided::InputStatistics found;
  found.second_moments.resize(columns_);
  if (!products_.empty()) found.products.resize(products_.size());
  add_to(found);
  return found;
}

void InputSums::add_to(guided::InputStatistics& earlier) const {
  if (earlier.second_moments.size() != columns_ || earlier.products.size() < products_.size()) {
    throw UsageError(fmt::format("earlier statistics are of {} columns{}, these of {}{}", earlier.second_moments.size(),
                                 earlier.products.empty() ? "" : " with products", columns_,
                                 products_.empty() ? "" : " with products"));
  }
  if (rows_ == 0) return;
  const std::uint64_t rows = earlier.rows + rows_;
  const double share = static_cast<double>(earlier.rows) / static_cast<double>(rows);
  const double factor = 1 / static_cast<double>(rows);
  const auto merged = [&](float mean, double sum) {
    return static_cast<float>(share * static_cast<double>(mean) + factor * sum);
  };
  earlier.rows = rows;
  earlier.feedback = nullptr;
  for (std::size_t i = 0; i < columns_; ++i) earlier.second_moments[i] = merged(earlier.second_moments[i], squares_[i]);
  if (products_.empty()) {
    earlier.products.clear();  // of some of the inputs only they would be no means
    return;
  }
  parallel_for(columns_, 8, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      for (std::size_t j = 0; j < columns_; ++j) {
        // Panels on the diagonal are whole; below them the other half is the same.
        const double sum = static_cast<double>(i < j ? products_[i * columns_ + j] : products_[j * columns_ + i]);
        float& mean = earlier.products[i * columns_ + j];
        mean = merged(mean, sum);
      }
    }
  });
}

}  // namespace imago::precision
