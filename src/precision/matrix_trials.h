#pragma once

// Matrices of a decoder in other types, in memory: packed as `morph` would pack them.

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
#include "lm/matrix_swap.h"
#include "precision/decoder_matrices.h"

namespace imago::precision {

/// A matrix in another type, and what that costs.
struct MatrixTrial {
  std::vector<std::pair<models::MatrixKey, lm::EncodedWeights>> parts;
  /// How much the products of the matrix with its usual inputs move: the mean squared error of its outputs, summed over
  /// them; from the second moments of columns where products of columns are not known. The effect on the output of
  /// the model is nearly proportional to it.
  double output_error = 0;
};

class MatrixTrials {
 public:
  /// Both must outlive it. Matrices that the calibration knows nothing of are packed plainly.
  MatrixTrials(const DecoderMatrices& matrices, const guided::Calibration& calibration, Rounding rounding)
      : matrices_(matrices), calibration_(calibration), rounding_(rounding) {}

  /// Throws UsageError for a calibration of another model.
  MatrixTrial encode(const DecoderMatrix& matrix, Format type) const;
  /// The same `output_error`, without packing more rows than it is taken from.
  double output_error(const DecoderMatrix& matrix, Format type) const;
  /// As the file has it.
  MatrixTrial original(const DecoderMatrix& matrix) const;

 private:
  /// None for matrices that the calibration does not know.
  const guided::InputStatistics* statistics(const DecoderMatrix& matrix, std::size_t expert) const;
  guided::EncodedMatrix pack(std::span<const float> weights, std::size_t cols, Format type,
                             const guided::InputStatistics* known) const;

  const DecoderMatrices& matrices_;
  const guided::Calibration& calibration_;
  Rounding rounding_;
};

/// Whether a matrix can be stored in that type.
bool fits(const DecoderMatrix& matrix, Format type) noexcept;
std::uint64_t bytes_in(const DecoderMatrix& matrix, Format type) noexcept;

MatrixTrial copy_of(const MatrixTrial& trial);

/// Puts all parts into the model.
void put(lm::MatrixSwap& swap, MatrixTrial trial);

}  // namespace imago::precision
