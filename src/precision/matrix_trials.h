#pragma once

// Packs matrices of a decoder in other types, in memory, exactly as `morph` would.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "guided/calibration.h"
#include "guided/encode_matrix.h"
#include "imago/format.h"
#include "imago/models.h"
#include "lm/matrix_encoder.h"
#include "precision/allocation.h"
#include "precision/decoder_matrices.h"

namespace imago::precision {

/// A matrix in another type, and what that costs.
struct MatrixTrial {
  std::vector<std::pair<models::MatrixKey, lm::EncodedWeights>> parts;
  /// The mean squared error of the outputs of the matrix on its calibrated inputs, summed over outputs; estimated from
  /// second moments if products of columns are unknown. The effect on the output of the model is nearly proportional.
  double output_error = 0;
};

class MatrixTrials {
 public:
  /// Both must outlive it. Matrices unknown to the calibration are packed without guidance.
  MatrixTrials(const DecoderMatrices& matrices, const guided::Calibration& calibration, Rounding rounding)
      : matrices_(matrices), calibration_(calibration), rounding_(rounding) {}

  /// Throws UsageError if the calibration belongs to another model.
  MatrixTrial encode(const DecoderMatrix& matrix, Format type) const;
  /// The same `output_error`, packing only the rows that it is computed from.
  double output_error(const DecoderMatrix& matrix, Format type) const;
  /// The matrix as stored in the file.
  MatrixTrial original(const DecoderMatrix& matrix) const;

 private:
  /// Null for matrices unknown to the calibration.
  const guided::InputStatistics* statistics(const DecoderMatrix& matrix, std::size_t expert) const;
  guided::EncodedMatrix pack(std::span<const float> weights, std::size_t cols, Format type,
                             const guided::InputStatistics* known) const;

  const DecoderMatrices& matrices_;
  const guided::Calibration& calibration_;
  Rounding rounding_;
};

/// The types that a matrix can be stored in, with their sizes.
std::vector<TypeOption> type_options(const DecoderMatrix& matrix, std::span<const Format> types);

MatrixTrial copy_of(const MatrixTrial& trial);

/// Installs all parts in the model.
void put(lm::MatrixSwap& swap, MatrixTrial trial);

}  // namespace imago::precision
