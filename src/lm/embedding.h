#pragma once

// From the rows that a model makes of a text to its embedding.

#include <cstddef>
#include <span>
#include <vector>

#include "imago/lm.h"

namespace imago::lm {

/// Takes the rows of a text in pieces. The mean is summed up in float64.
class Pooler {
 public:
  Pooler(Pooling pooling, std::size_t width) : pooling_(pooling), values_(width, 0.0) {}

  /// Rows of further tokens, [tokens][width].
  void add(std::span<const float> rows);
  /// REQUIRES: it has seen a row.
  std::vector<float> result() const;

 private:
  Pooling pooling_;
  std::vector<double> values_;
  std::size_t tokens_ = 0;
};

/// Scales a vector to a length of 1; zeros stay.
void normalize(std::span<float> vector) noexcept;

}  // namespace imago::lm
