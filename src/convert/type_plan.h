#pragma once

// The type of every tensor of the target, and why.

#include <cstddef>
#include <string>
#include <vector>

#include "convert/target_types.h"
#include "imago/models.h"
#include "imago/weights.h"
#include "models/recipe.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"

namespace imago::convert {

struct PlannedTensor {
  const models::TensorRecipe* recipe = nullptr;
  TargetType type;
  std::string reason;        ///< "asked for", "norms and biases stay wide"
  Scheme scheme;             ///< the format; of scaled types also where scales are and how they are found
  ScaleLayout scales;        ///< of scaled types
  bool zero_points = false;  ///< there is a zero point beside each scale
  std::size_t code_bytes = 0;
  /// The target has the bytes of the source, perhaps with rows in another order.
  bool copied = false;
  bool misfit = false;  ///< the rows fit no block of the requested type

  /// The target is an array of blocks and float32 vectors.
  bool has_parts() const noexcept {
    return type.format && recipe->array && imago::has_parts(*type.format, *recipe->array);
  }
  const files::StoredTensor& source() const { return *recipe->parts.front().tensor; }
  /// Scales included.
  std::size_t bytes() const noexcept { return code_bytes + scales.count * sizeof(float) * (zero_points ? 2 : 1); }
};

/// The rows that blocks must fit, for messages: "rows of 64", "rows of multiples of 32" of a layer with several
/// matrices.
std::string rows_text(const models::TensorRecipe& recipe);

/// One planned tensor per tensor of the recipe, which must outlive the plan. The first rule that applies decides:
///
/// 1. a pattern of `tensor_types`;
/// 2. a plan that names the tensor, whose type must fit;
/// 3. without `type`: what the recipe prefers (vectors of a GGUF decoder are float32), else the tensor's own type, or
///    its replacement (target_types.h);
/// 4. layers of a network take `type`, but for block formats and layers without a matrix;
/// 5. tensors that do not hold weights (integers, masks) and those that cannot be decoded keep their type;
/// 6. vectors stay wide: float32 in a GGUF decoder, else their own type; so do, in decoders and unless `pure`, routers
///    and matrices of fewer than 16 rows;
/// 7. the usual mix of `type` in decoders (target_types.h), unless `pure`;
/// 8. `type`.
///
/// A type whose blocks do not fit the rows is replaced in the mix of a decoder and in networks (fitting_type); if none
/// fits, the tensor keeps a wide type, a layer its own. In a bag of tensors and with `pure` nothing replaces it: the
/// tensor keeps its own type. Throws UnsupportedError if the target cannot hold a requested type, UsageError for
/// options without meaning and for a plan of another model.
std::vector<PlannedTensor> plan_types(const models::ModelRecipe& recipe, const ConvertOptions& options);

/// The checks of plan_types that need no tensors.
void check_type_options(FileForm target, const ConvertOptions& options);

}  // namespace imago::convert
