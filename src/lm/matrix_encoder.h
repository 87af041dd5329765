#pragma once

// Matrices packed by someone else while a model is loaded: how plans, sweeps and better encoders are tried without a
// file for each.

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "imago/codec.h"
#include "imago/device.h"
#include "imago/format.h"
#include "imago/lm.h"
#include "models/matrix_names.h"

namespace imago::lm {

/// Weights packed anew, in memory of their own.
struct EncodedWeights {
  Format format = DType::float32;
  Buffer packed;
  std::vector<float> scales = {};  ///< empty for types without scales
  std::size_t scale_group = 0;     ///< weights per scale: a row, or 32, 64 or 128; 0 without scales

  Scales view_scales() const noexcept { return {scales, scale_group}; }
};

/// Packs a matrix, [rows][cols] in float32, or says none to leave it as it is stored. Of a tied output, the token
/// embedding is asked for once and used for both.
using MatrixEncoder = std::function<std::optional<EncodedWeights>(
    const models::MatrixKey& key, std::span<const float> weights, std::size_t rows, std::size_t cols)>;

/// As LanguageModel::load, with every weight matrix but routers packed by `encoder`. Memory: one matrix in float32
/// more.
LanguageModel load_encoded(const std::string& path, const LanguageModelOptions& options, const MatrixEncoder& encoder);

}  // namespace imago::lm
