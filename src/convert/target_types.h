#pragma once

// Which types a file format can hold, what replaces those that it cannot, and the usual mixes of types in a quantized
// decoder. Mixes and replacements follow llama.cpp, so that sizes and quality are what users of GGUF expect.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "files/tensor_file.h"
#include "imago/files.h"
#include "imago/format.h"
#include "models/recipe.h"

namespace imago::convert {

/// What the elements of a tensor are in the target.
struct TargetType {
  /// None: bytes that are copied without being decoded (BOOL, F4, Q8_K).
  std::optional<Format> format;
  /// Codes with separate scales; false for integers that are plain numbers.
  bool scaled = false;

  friend bool operator==(const TargetType&, const TargetType&) = default;
};

/// Checkpoints, architectures and .entity files.
bool is_network(FileForm format) noexcept;

/// Whether weights can be stored in `format`, with scales where it has them. GGUF: block formats and wide floats; all
/// others: everything.
bool can_hold(FileForm target, Format format) noexcept;

/// Throws UnsupportedError unless the target can hold `format`, with the nearest type and the targets that can.
void require_holdable(FileForm target, Format format);

struct TypeChoice {
  TargetType type;
  std::string reason;
  bool kept = false;    ///< nobody requested a type, so codes keep their scales
  bool misfit = false;  ///< not the requested type: the rows fit no block of it
};

/// The type of a tensor for which none was requested: its own, without a reason, or the replacement for a type that the
/// target cannot hold. Throws UnsupportedError, naming the tensor, for types that imago cannot decode and the target
/// does not know.
///
/// | source | in GGUF |
/// |---|---|
/// | codes of up to 8 bits with scales, fp8, F4 | float16 |
/// | wider codes with scales, F8_E8M0 | float32 |
/// | BOOL, U8, U16, U32, U64 | I8, I16, I32, I64, I64: the same numbers |
TypeChoice keep_type(FileForm target, const files::StoredTensor& tensor);

/// The name in reports: "float16", "q4_k", "BOOL".
std::string type_name(const TargetType& type, const files::StoredTensor& source);
std::string type_name(const files::StoredTensor& tensor);

/// The safetensors type of elements; none if they must be packed as bytes.
std::optional<SafetensorsType> plain_safetensors_type(const TargetType& type, const files::StoredTensor& source);

/// The type of a decoder's tensor in the usual mix of `format`; none if the tensor keeps its own type. `tied`: the
/// token embedding gives the logits too.
std::optional<Format> mixed_type(Format format, const models::TensorRecipe& tensor, bool tied);

/// `general.file_type` of a GGUF file most of whose weights are in `format`. None if GGUF has no number for it.
std::optional<std::uint32_t> gguf_file_type(Format format, bool mixed) noexcept;

}  // namespace imago::convert
