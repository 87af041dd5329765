#pragma once

// The type of every tensor of the target, and why.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/target_types.h"
#include "imago/models.h"
#include "imago/weights.h"
#include "models/recipe.h"
#include "quant/scheme.h"

namespace imago::convert {

struct PlannedTensor {
  const models::TensorRecipe* recipe = nullptr;
  TargetType type;
  std::string reason;  ///< "asked for", "norms and biases stay float32"
  Scheme scheme;       ///< of scaled types: where scales sit and how they are found
  ScaleLayout scales;  ///< of scaled types
  std::size_t code_bytes = 0;
  /// The bytes of the source are those of the target, but for the order of rows.
  bool copied = false;

  const files::StoredTensor& source() const { return *recipe->parts.front().tensor; }
  /// Scales included.
  std::size_t bytes() const noexcept { return code_bytes + scales.count * sizeof(float); }
};

/// In the order of the recipe, which must outlive the plan. The rules, the first that applies decides:
///
/// 1. a pattern of `tensor_types`;
/// 2. a plan that names it, where it must fit;
/// 3. without `type`: what the recipe prefers (vectors of a GGUF decoder are float32), else the tensor's own type, or
///    what stands in for it (target_types.h);
/// 4. what holds no weights (integers, masks) and what cannot be decoded stays as it is;
/// 5. vectors stay wide: float32 in a GGUF decoder, else their own type; so do, in decoders and unless `pure`, routers
///    and matrices of fewer than 16 rows;
/// 6. the usual mix of `type` in decoders (mixes.h), unless `pure`;
/// 7. `type`.
///
/// A type whose blocks do not fit the rows is replaced in the mix of a decoder (mixes.h); where none fits the tensor
/// keeps a wide type. In a bag of tensors and with `pure` nothing replaces it: the tensor keeps its own type.
/// Throws UnsupportedError if the target cannot hold a type that was asked for, UsageError for options without meaning
/// and for a plan of another model.
std::vector<PlannedTensor> plan_types(const models::ModelRecipe& recipe, const ConvertOptions& options);

/// What decides about types in general, apart from any tensor: throws as plan_types.
void check_type_options(FileForm target, const ConvertOptions& options);

}  // namespace imago::convert
