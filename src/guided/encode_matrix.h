#pragma once

// Encodes one weight matrix, guided by statistics of its inputs.

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "guided/calibration.h"
#include "imago/codec.h"
#include "imago/weights.h"
#include "quant/scheme.h"

namespace imago::guided {

struct EncodedMatrix {
  std::vector<std::byte> codes;
  std::vector<float> scales;            ///< for dtypes with scales
  std::size_t scale_group = 0;          ///< weights per scale
  std::vector<float> zero_points = {};  ///< one beside each scale; empty: all 0

  Scales scaling() const noexcept { return {scales, scale_group, zero_points}; }
  void set_scales(ScaleValues values, std::size_t group) {
    scales = std::move(values.scales);
    zero_points = std::move(values.zero_points);
    scale_group = group;
  }
};

/// Packs `weights`, [rows][cols], in `scheme`. Without statistics it does what a morph does. With them,
/// `nearest` weights the error of each column by its second moment when it chooses scales, and `compensated` rounds
/// column by column and lets later columns compensate for the error (GPTQ), which needs `products`. Runs on the pool;
/// the bytes do not depend on the number of threads. Throws UsageError if the statistics do not fit or lack what the
/// rounding needs, UnsupportedError if the type does not support the rounding.
EncodedMatrix encode_matrix(std::span<const float> weights, std::size_t rows, std::size_t cols, const Scheme& scheme,
                            Rounding rounding, const InputStatistics* statistics);

/// Back to float32, [rows][cols].
std::vector<float> decode_matrix(const EncodedMatrix& matrix, const Scheme& scheme, std::size_t rows, std::size_t cols);

/// About `most` rows, evenly spaced: every (rows / most)-th one. [rows][cols]
std::vector<float> sample_rows(std::span<const float> weights, std::size_t cols, std::size_t most);

}  // namespace imago::guided
