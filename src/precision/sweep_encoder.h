#pragma once

// The types of a conversion, carried out on a model in memory.

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "convert/type_plan.h"
#include "guided/calibration.h"
#include "imago/models.h"
#include "imago/weights.h"
#include "lm/matrix_encoder.h"
#include "models/traits.h"
#include "precision/distortion_sums.h"

namespace imago::precision {

/// Encodes the matrices of a decoder as a plan of types says, and notes what that does to them.
class PlannedEncoder {
 public:
  /// `plan` is of canonical names and need not outlive the encoder; the others must. Matrices that `calibration` knows
  /// nothing of are rounded plainly.
  PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan,
                 const guided::Calibration& calibration, Rounding rounding);

  /// None for matrices that keep their type. Throws as guided::encode_matrix. Not thread-safe.
  std::optional<lm::EncodedWeights> encode(const models::MatrixKey& key, std::span<const float> weights,
                                           std::size_t rows, std::size_t cols);
  /// Of all weights that were encoded so far.
  const DistortionSums& change() const noexcept { return change_; }

 private:
  const models::Traits& traits_;
  const guided::Calibration& calibration_;
  Rounding rounding_;
  std::map<std::string, Scheme> schemes_;  // of the matrices that change
  DistortionSums change_;
};

}  // namespace imago::precision
