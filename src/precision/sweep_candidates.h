#pragma once

// The ways to store a decoder that a sweep tries, and how large each would be.

#include <string>
#include <vector>

#include "convert/type_plan.h"
#include "files/tensor_file.h"
#include "imago/precision.h"
#include "models/recipe.h"

namespace imago::precision {

struct Candidate {
  std::string name;
  bool is_plan = false;
  Rounding rounding = Rounding::nearest;
  std::uint64_t bytes = 0;                           ///< of all tensors in the file that convert_model would write
  std::vector<convert::PlannedTensor> tensors = {};  ///< by canonical names

  /// Of each matrix.
  std::vector<TypedTensor> types() const;
};

/// Plans for each type and each plan of the options. Block formats and wide floats as in a GGUF file, dtypes with
/// scales as in safetensors. The recipes refer to the file. Throws as convert_model.
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

}  // namespace imago::precision
