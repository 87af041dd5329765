#pragma once

// What types cost for each matrix of a decoder: packs matrices in memory, exactly as `morph` would, measures a few
// types and estimates the others.

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "guided/calibration.h"
#include "guided/encode_matrix.h"
#include "imago/format.h"
#include "imago/lm.h"
#include "imago/models.h"
#include "lm/matrix_encoder.h"
#include "precision/allocation.h"
#include "precision/decoder_matrices.h"
#include "precision/output_probe.h"

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
  guided::EncodedMatrix pack(std::span<const float> weights, std::size_t cols, Format type,
                             const guided::InputStatistics* known) const;

  const DecoderMatrices& matrices_;
  const guided::Calibration& calibration_;
  Rounding rounding_;
};

/// The types that a matrix can be stored in, with their sizes.
std::vector<TypeOption> type_options(const DecoderMatrix& matrix, std::span<const Format> types);

/// Weights without scales, with a copy of the codes.
lm::EncodedWeights packed(Format type, std::span<const std::byte> codes);

/// Installs all parts in the model.
void put(lm::MatrixSwap& swap, MatrixTrial trial);

/// Estimates what was not measured. Divergence is modelled as a power of the output error, fitted to the measured types
/// and near 1 for small errors; proportional below the measured range, with the fitted power above it. REQUIRES: at
/// least one cost is measured, and errors are not negative.
void estimate_unmeasured(std::span<TypeOption> options);

/// The types worth measuring: the one nearest to the requested bits and those about one bit above and below, since most
/// choices fall there. There may be fewer than three. REQUIRES: types are not empty.
std::vector<Format> types_to_measure(std::span<const Format> types, double bits);

/// The cost of each fitting type for each matrix. `progress` counts matrices. Restores the model.
std::vector<std::vector<TypeOption>> measure_costs(LanguageModel& model, const DecoderMatrices& matrices,
                                                   const MatrixTrials& trials, OutputProbe& probe,
                                                   std::span<const Format> types, std::span<const Format> measured,
                                                   const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace imago::precision
