#pragma once

// Matrices that a caller packs while a model is loaded: plans, sweeps and better encoders are tried this way without
// writing a file for each.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/runner.h"
#include "imago/codec.h"
#include "imago/device.h"
#include "imago/format.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "models/tensor_layout.h"

namespace imago::lm {

/// Packed weights in memory of their own.
struct EncodedWeights {
  Format format = DType::float32;
  Buffer packed;
  std::vector<float> scales = {};       ///< empty for types without scales
  std::size_t scale_group = 0;          ///< weights per scale: a row, or 32, 64 or 128; 0 without scales
  std::vector<float> zero_points = {};  ///< one beside each scale; empty: all 0

  kernels::PackedMatrix view(std::size_t rows, std::size_t cols) const {
    return {.format = format,
            .rows = rows,
            .cols = cols,
            .packed = packed.host(),
            .scales = {scales, scale_group, zero_points}};
  }
};

/// A table of rows with these bytes.
inline backend::RowTable table_of(std::size_t rows, std::size_t cols, EncodedWeights weights) {
  const auto owner = std::make_shared<const EncodedWeights>(std::move(weights));
  return {owner->view(rows, cols), owner};
}

/// Packs a matrix, [rows][cols] in float32, or returns none to leave it as it is stored. With a tied output, it is
/// called once for the token embedding.
using MatrixEncoder = std::function<std::optional<EncodedWeights>(
    const models::MatrixKey& key, std::span<const float> weights, std::size_t rows, std::size_t cols)>;

/// As LanguageModel::load, with every weight matrix but routers packed by `encoder`. Memory: one matrix in float32
/// more.
LanguageModel load_encoded(const std::string& path, const LanguageModelOptions& options, const MatrixEncoder& encoder);

struct MatrixGroup;
struct LaidOutGroup;

/// Puts matrices into a model, and the old ones back when it goes. The model must outlive it and have exact products,
/// and nobody may run the model while matrices change. Swaps of one matrix go in the reverse order of their making.
class MatrixSwap {
 public:
  explicit MatrixSwap(LanguageModel& model);
  MatrixSwap(const MatrixSwap&) = delete;
  MatrixSwap& operator=(const MatrixSwap&) = delete;
  ~MatrixSwap();

  /// `weights` have the shape of the matrix they replace. The token embedding of a tied output changes in both places.
  /// Throws ShapeError, and as RunMatrix; the model is then as before.
  void put(const models::MatrixKey& key, EncodedWeights weights);

 private:
  LanguageModel& model_;
  std::vector<std::pair<MatrixGroup, LaidOutGroup>> kept_;
};

}  // namespace imago::lm
