#pragma once

// The candidates of a sweep: ways to store a decoder, their sizes, and the encoder that applies one in memory.

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/type_plan.h"
#include "files/tensor_file.h"
#include "guided/calibration.h"
#include "imago/models.h"
#include "imago/precision.h"
#include "imago/weights.h"
#include "lm/matrix_encoder.h"
#include "models/recipe.h"
#include "models/traits.h"
#include "precision/measures.h"

namespace imago::precision {

struct Candidate {
  std::string name;
  bool is_plan = false;
  Rounding rounding = Rounding::nearest;
  std::uint64_t bytes = 0;                           ///< of all tensors in the file that convert_model would write
  std::vector<convert::PlannedTensor> tensors = {};  ///< by canonical names

  /// The type of each matrix.
  std::vector<TypedTensor> types() const;
};

/// Plans each type and each plan file of the options: block formats and wide floats as in a GGUF file, dtypes with
/// scales as in safetensors. The recipes refer to the file. Throws like convert_model.
class Candidates {
 public:
  Candidates(const files::TensorFile& file, const SweepOptions& options);

  std::uint64_t parameters() const noexcept { return parameters_; }
  const std::vector<Candidate>& all() const noexcept { return candidates_; }

 private:
  Candidate plan(const ConvertOptions& wanted, std::string name, bool in_gguf) const;

  models::ModelRecipe gguf_, scaled_, stored_;
  std::uint64_t parameters_ = 0;
  std::vector<Candidate> candidates_;
};

/// Encodes the matrices of a decoder in the types of a plan, and measures how much that changes them.
class PlannedEncoder {
 public:
  /// `plan` has canonical names and need not outlive the encoder; the others must. Matrices unknown to `calibration`
  /// are rounded without it.
  PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan,
                 const guided::Calibration& calibration, Rounding rounding);

  /// None for matrices that keep their type. Throws like guided::encode_matrix. Not thread-safe.
  std::optional<lm::EncodedWeights> encode(const models::MatrixKey& key, std::span<const float> weights,
                                           std::size_t rows, std::size_t cols);
  /// The change of all weights encoded so far.
  const DistortionSums& change() const noexcept { return change_; }

 private:
  const models::Traits& traits_;
  const guided::Calibration& calibration_;
  Rounding rounding_;
  std::map<std::string, Scheme> schemes_;  // for the matrices that change
  DistortionSums change_;
};

}  // namespace imago::precision
