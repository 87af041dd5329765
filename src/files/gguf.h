#pragma once

// GGUF apart from files: what readers, writers and fuzzers share.
//
// "GGUF" | u32 version | u64 tensors | u64 metadata | metadata | tensor table | padding | data
//   metadata:     string key | u32 type | value          string: u64 bytes | text
//   array:        u32 type of the elements | u64 count | elements
//   tensor table: string name | u32 rank | u64 extent × rank, innermost first | u32 type | u64 offset into the data
//
// All little-endian, nothing aligned in front of the data.
//
// | field | rule |
// |---|---|
// | version | 2 or 3; version 1 had other lengths, and a byte-swapped number is a big-endian file |
// | tensors, metadata | at most 2^20 each, and no more than the rest of the file could hold |
// | key | 1 … 65535 bytes of UTF-8 without control characters, no key twice |
// | value | type 0 … 12; a bool is 0 or 1; strings may hold any bytes |
// | array | no more elements than the rest of the file could hold; 4 arrays in each other; 2^24 strings and 2^20 inner
// |       | arrays in all |
// | `general.alignment` | a u32, a power of two up to 2^20; 32 if absent |
// | name | 1 … 63 bytes of UTF-8 without control characters, no name twice |
// | rank, extents | at most 4; extents and their product below 2^63; rows of whole blocks |
// | type | one of gguf_tensor_types() |
// | offset | a multiple of the alignment; the data lies in the file and overlaps no other |
// | `split.count`, `split.no`, `split.tensors.count` | any integer type; 0 … 65535, below the count, the tensors of all
// parts |

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/byte_reader.h"
#include "files/name_index.h"
#include "imago/data.h"

namespace imago {

/// Builds values and arrays that view a file.
struct GgufMaker {
  static GgufArray numbers(GgufType type, std::size_t size, std::span<const std::byte> bytes);
  static GgufArray strings(std::vector<std::string_view> views);
  static GgufValue string(std::string_view text);
};

namespace files {

inline constexpr std::size_t kMaxGgufEntries = std::size_t{1} << 20;
inline constexpr std::size_t kMaxGgufKey = 65535;
inline constexpr std::size_t kMaxGgufName = 63;
inline constexpr std::size_t kMaxGgufRank = 4;
inline constexpr std::size_t kMaxGgufStrings = std::size_t{1} << 24;  // in arrays; 60 vocabularies of 256k tokens
inline constexpr std::uint32_t kMaxGgufAlignment = std::uint32_t{1} << 20;
inline constexpr std::size_t kMaxGgufParts = 65535;
inline constexpr std::string_view kGgufAlignmentKey = "general.alignment";

/// Calls f with a value of the type, for numbers and bools.
template <class F>
void with_number_type(GgufType type, F f) {
  switch (type) {
    case GgufType::u8: return f(std::uint8_t{});
    case GgufType::i8: return f(std::int8_t{});
    case GgufType::u16: return f(std::uint16_t{});
    case GgufType::i16: return f(std::int16_t{});
    case GgufType::u32: return f(std::uint32_t{});
    case GgufType::i32: return f(std::int32_t{});
    case GgufType::f32: return f(float{});
    case GgufType::boolean: return f(bool{});
    case GgufType::u64: return f(std::uint64_t{});
    case GgufType::i64: return f(std::int64_t{});
    case GgufType::f64: return f(double{});
    case GgufType::string:
    case GgufType::array: break;
  }
}

/// Bytes of an element; 0 for strings, arrays and unknown types.
std::size_t gguf_element_bytes(GgufType type) noexcept;

/// Null if there is no such type.
const GgufTensorType* find_gguf_tensor_type(std::uint32_t id) noexcept;

/// Bytes of a tensor. Throws ShapeError for rows that are not whole blocks, and on overflow.
std::size_t gguf_tensor_bytes(const GgufTensorType& type, const Shape& shape);

/// What is wrong with a key or name, or nothing.
std::string gguf_name_problem(std::string_view text, std::size_t max_bytes);

/// What is left of the limits that hold for a file as a whole.
struct GgufBudget {
  std::size_t strings = kMaxGgufStrings;
};

/// Reads the value of `key`, type and all.
GgufValue read_gguf_value(ByteReader& reader, std::string_view key, GgufBudget& budget);

struct GgufHeader {
  std::uint32_t version = 3;
  std::uint32_t alignment = GgufWriter::kAlignment;
  std::vector<GgufMetadata> metadata;
  NameIndex<GgufMetadata> by_key;
  std::vector<GgufTensor> tensors;
  NameIndex<GgufTensor> by_name;
  std::vector<std::string> notes;

  const GgufValue* find(std::string_view key) const noexcept;
};

/// Checks all of `file` but the values of its tensors; strings, arrays and tensors are views of it. Splits are not
/// looked at. Throws FormatError naming `path`.
GgufHeader parse_gguf(std::span<const std::byte> file, std::string_view path);

/// What the `split.` keys say; count is 1 for a file that is not split.
struct GgufSplit {
  std::size_t index = 0;
  std::size_t count = 1;
  std::size_t tensors = 0;  // of all parts
};
GgufSplit read_gguf_split(const GgufHeader& header, std::string_view path);

/// Decodes into `out`, one value per element. REQUIRES: tensor.type.format is set, out has the elements of its shape.
void decode_gguf(const GgufTensor& tensor, std::span<float> out);

}  // namespace files
}  // namespace imago

// GGUF metadata as JSON text, for people and programs that look into files.

namespace imago::files {

/// One value as JSON. Strings keep their text, but what is not UTF-8 becomes U+FFFD; numbers that are not finite become
/// strings ("nan"). Arrays of more than 16 elements become {"type": "string", "count": 32000, "first": […]}.
std::string to_json(const GgufValue& value);

}  // namespace imago::files
