#pragma once

// The types of a conversion, carried out on a model in memory.

#include <cstddef>
#include <map>
#include <optional>
#include <string>

#include "convert/type_plan.h"
#include "imago/weights.h"
#include "lm/matrix_encoder.h"
#include "models/traits.h"
#include "precision/distortion_sums.h"

namespace imago::precision {

/// Packs `weights`, [rows][cols], as files of that scheme have them. A single scale becomes one per row, all equal,
/// since that is what products read. Throws as imago::encode.
lm::EncodedWeights encode_weights(std::span<const float> weights, std::size_t rows, std::size_t cols,
                                  const Scheme& scheme);

/// Encodes the matrices of a decoder as a plan of types says, and notes what that does to them.
class PlannedEncoder {
 public:
  /// `plan` is of canonical names and need not outlive the encoder.
  PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan);

  /// None for matrices that keep their type. Not thread-safe.
  std::optional<lm::EncodedWeights> encode(const models::MatrixKey& key, std::span<const float> weights,
                                           std::size_t rows, std::size_t cols);
  /// Of all weights that were encoded so far.
  const DistortionSums& change() const noexcept { return change_; }

 private:
  const models::Traits& traits_;
  std::map<std::string, Scheme> schemes_;  // of the matrices that change
  DistortionSums change_;
};

}  // namespace imago::precision
