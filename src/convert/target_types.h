#pragma once

// Which types the forms of files can hold, and what stands in for those that they cannot.

#include <optional>
#include <string>

#include "files/tensor_file.h"
#include "imago/files.h"
#include "imago/format.h"

namespace imago::convert {

/// What the elements of a tensor are in the target.
struct TargetType {
  /// None: bytes that are copied unseen (BOOL, F4, iq2_xxs).
  std::optional<Format> format;
  /// Codes with scales beside them. Integers that are no codes but numbers have none.
  bool scaled = false;

  friend bool operator==(const TargetType&, const TargetType&) = default;
};

/// True for dtypes whose codes mean nothing without scales.
bool has_scales(Format format) noexcept;
/// float64 … bfloat16.
bool is_wide(Format format) noexcept;

/// Whether weights can be stored in `format`, with scales where it has them. GGUF: block formats and wide floats;
/// safetensors and folders: everything; networks: the 21 dtypes.
bool can_hold(FileForm target, Format format) noexcept;

/// Throws UnsupportedError, with what is near and which forms can, unless the target can hold it.
void require_holdable(FileForm target, Format format);

/// The type of a tensor that keeps its type, and why it is another one where the target cannot hold it.
struct KeptType {
  TargetType type;
  std::string reason;  ///< empty: it is its own
};
/// REQUIRES: target is gguf, safetensors or huggingface. Throws UnsupportedError, naming the tensor, for types that
/// imago can name only, in a form that does not know them.
///
/// | source | in GGUF |
/// |---|---|
/// | codes of up to 8 bits with scales, fp8, F4 | float16 |
/// | wider codes with scales, F8_E8M0 | float32 |
/// | BOOL, U8, U16, U32, U64 | I8, I16, I32, I64, I64: the same numbers |
KeptType keep_type(FileForm target, const files::StoredTensor& tensor);

/// As reports name it: "float16", "q4_k", "BOOL".
std::string type_name(const TargetType& type, const files::StoredTensor& source);
std::string type_name(const files::StoredTensor& tensor);

/// The type of safetensors files for elements that are not packed; none if they are.
std::optional<SafetensorsType> plain_safetensors_type(const TargetType& type, const files::StoredTensor& source);

}  // namespace imago::convert
