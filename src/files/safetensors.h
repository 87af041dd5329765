#pragma once

// The header of a safetensors file, apart from files: what readers and fuzzers share.
//
// u64 little-endian N | N bytes of JSON, an object, padded with spaces | data
//
// | field | rule |
// |---|---|
// | N | 2 … 100 000 000, and not more than the file holds; the header starts with '{' |
// | `__metadata__` | an object of strings |
// | name | not empty, no key twice |
// | `dtype` | one of the 17 names, which fixes the size |
// | `shape` | at most 16 plain integers from 0 to 2^53, whose product and bytes do not overflow |
// | `data_offsets` | [begin, end], begin <= end <= data size, end - begin = bytes of shape and type |
// | all tensors | together they cover the data once: no overlap, no hole, no tail |

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/json.h"
#include "imago/data.h"

namespace imago::files {

struct StoredTensor;

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;  // in the order of the data
  std::vector<std::pair<std::string, std::string>> metadata;
};

inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

/// Checks all of `file`, whose tensors are views of it. Throws FormatError naming `path`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view path);

/// Bytes of a tensor. Throws ShapeError on overflow and for half a byte.
std::size_t safetensors_bytes(SafetensorsType type, const Shape& shape);

/// What a file begins with whose tensors follow each other in the order of `entries`: the length of the JSON, and the
/// JSON. Throws UsageError if it is too long.
std::string safetensors_header(std::span<const SafetensorsEntry> entries,
                               std::vector<std::pair<std::string, std::string>> metadata = {});

std::optional<SafetensorsType> find_safetensors_type(std::string_view text) noexcept;

/// A shape as headers have it. Throws FormatError.
Shape read_safetensors_shape(const JsonValue& value);

/// The dtype with the same bytes: all types but BOOL, F8_E8M0 and F4 (whose nibbles are in the other order) have one.
std::optional<DType> safetensors_dtype(SafetensorsType type) noexcept;

/// The type with the same bytes; none for types below 8 bits and block formats.
std::optional<SafetensorsType> safetensors_type(Format format) noexcept;

/// Elements first … first + out.size() - 1 of a type without a dtype. Throws FormatError for a bool that is neither 0
/// nor 1. REQUIRES: they are within the bytes.
void decode_special(const StoredTensor& tensor, std::size_t first, std::span<float> out);

/// Decodes all elements. Throws like decode_tensor.
void decode_safetensors(const SafetensorsTensor& tensor, std::string_view path, std::span<float> out);

}  // namespace imago::files
