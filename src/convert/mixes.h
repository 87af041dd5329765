#pragma once

// The usual mixes of types in a quantized decoder, and what takes over where rows do not fit a block. Both follow what
// llama.cpp does in spirit, so that sizes and quality are those that users of GGUF expect.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "imago/format.h"
#include "models/recipe.h"

namespace imago::convert {

/// The type of `format`'s usual mix for a tensor of a decoder; `format` itself where it makes no difference, none where
/// the tensor keeps its own type. `tied`: the token embedding gives the logits too.
std::optional<Format> mixed_type(Format format, const models::TensorRecipe& tensor, bool tied);

/// The best type near `format` whose blocks fit rows of `cols`; none if no block fits.
std::optional<Format> fitting_type(Format format, std::size_t cols) noexcept;

/// `general.file_type` of a GGUF file most of whose weights are in `format`. None where GGUF has no number for it.
std::optional<std::uint32_t> gguf_file_type(Format format, bool mixed) noexcept;

}  // namespace imago::convert
