#pragma once

// Types that safetensors does not have, inside safetensors files, and those that GGUF does not have, inside the GGUF
// files of networks. The convention is described at the end of tensor_file.h.
//
// | field of an entry of `imago.packed` | rule |
// |---|---|
// | name | a U8 tensor of the file (GGUF: I8), no name twice |
// | `type` | the name of a block format or of a dtype with scales, spelled as imago does |
// | `shape` | at most 16 plain integers from 0 to 2^53; with the type it gives the bytes of the tensor; rows of whole
// |         | blocks |
// | `granularity` | of dtypes: `tensor`, `row` or `group`; absent for block formats |
// | `group` | 32, 64 or 128, a divisor of the row; present with `group` only |
// | `zero_points` | `true` or absent; of unsigned dtypes only |
// | `NAME.scales` | of dtypes: an F32 tensor with one scale per tensor, row or group, finite and not negative |
// | `NAME.zeros` | with `zero_points`: an F32 tensor of as many integers from 0 to the largest code |

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/tensor_file.h"
#include "imago/codec.h"

namespace imago::files {

struct PackedTensor {
  std::string name;
  Format format = DType::float32;
  Shape shape;
  Granularity granularity = Granularity::tensor;  ///< of dtypes
  int group = 0;                                  ///< with Granularity::group, else 0
  bool zero_points = false;                       ///< of unsigned dtypes

  bool operator==(const PackedTensor&) const = default;
};

/// The text of the entry `imago.packed`, in the order given. Throws UsageError for formats without scales that are not
/// block formats, which safetensors has itself, and for a granularity or group without meaning.
std::string packed_text(std::span<const PackedTensor> tensors);

/// Scales that the tensor `NAME.scales` has; 0 for block formats, which have none. Throws ShapeError if the rows do not
/// fit, UsageError as packed_text.
std::size_t packed_scale_count(const PackedTensor& tensor);

/// Reads what packed_text writes. `file` is the name that errors give. Throws FormatError.
std::vector<PackedTensor> parse_packed(std::string_view text, std::string_view file);

/// `tensors` as they are meant, where `text` is the entry `imago.packed`: packed ones under their own type and shape,
/// with their scales. Throws FormatError naming `path`.
std::vector<StoredTensor> unpack_tensors(std::vector<StoredTensor> tensors, std::string_view text,
                                         std::string_view path);

/// The tensors of a safetensors file as they are meant: packed ones under their own type and shape, with their scales.
/// Throws FormatError naming `path`. The tensors view `tensors` and `path`.
std::vector<StoredTensor> list_safetensors(std::span<const SafetensorsTensor> tensors,
                                           std::span<const std::pair<std::string, std::string>> metadata,
                                           std::string_view path);

}  // namespace imago::files
