#pragma once

// Helpers for tests of the block formats.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "imago/format.h"
#include "testing/random_values.h"

namespace imago::testing {

inline std::vector<BlockFormat> all_block_formats() {
  std::vector<BlockFormat> formats;
  for (const BlockFormatInfo& row : kBlockFormats) formats.push_back(row.id);
  return formats;
}

/// For INSTANTIATE_TEST_SUITE_P.
inline std::string block_format_name(const ::testing::TestParamInfo<BlockFormat>& info) {
  return std::string(name(info.param));
}

/// sqrt(Σ f (a - b)² / n), f = 1 when `factors` is empty (its pattern repeats otherwise).
inline double weighted_rmse(std::span<const float> a, std::span<const float> b, std::span<const float> factors = {}) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double e = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += e * e * (factors.empty() ? 1.0 : static_cast<double>(factors[i % factors.size()]));
  }
  return std::sqrt(sum / static_cast<double>(a.size()));
}

}  // namespace imago::testing
