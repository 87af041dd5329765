#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/checked.h"
#include "files/gguf.h"
#include "files/json_text.h"
#include "imago/error.h"

namespace imago {

namespace {

constexpr std::array<std::string_view, 13> kValueNames = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                          "bool", "string", "array", "u64", "i64", "f64"};

constexpr GgufTensorType plain(std::uint32_t id, std::string_view name, DType dtype) {
  return {id, name, 1, bits(dtype) / 8, dtype};
}
/// Types that imago names and copies.
constexpr GgufTensorType named(std::uint32_t id, std::string_view name, int values, int bytes) {
  return {id, name, values, bytes, std::nullopt};
}

constexpr GgufTensorType kOtherTypes[] = {
    plain(0, "F32", DType::float32),  plain(1, "F16", DType::float16),    plain(24, "I8", DType::int8),
    plain(25, "I16", DType::int16),   plain(26, "I32", DType::int32),     plain(27, "I64", DType::int64),
    plain(28, "F64", DType::float64), plain(30, "BF16", DType::bfloat16), named(9, "Q8_1", 32, 36),
    named(15, "Q8_K", 256, 292),
};

/// GGUF has the names of block formats in capitals.
constexpr auto kBlockNames = [] {
  std::array<std::array<char, 16>, kBlockFormatCount> names{};
  for (std::size_t row = 0; row < names.size(); ++row) {
    for (std::size_t i = 0; i < kBlockFormats[row].name.size(); ++i) {
      const char c = kBlockFormats[row].name[i];
      names[row][i] = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }
  }
  return names;
}();

/// By id: the types above and the block formats that GGUF has.
constexpr auto kTensorTypes = [] {
  constexpr std::size_t kBlocks =
      static_cast<std::size_t>(std::ranges::count_if(kBlockFormats, &BlockFormatInfo::in_gguf));
  std::array<GgufTensorType, std::size(kOtherTypes) + kBlocks> types{};
  auto at = std::ranges::copy(kOtherTypes, types.begin()).out;
  for (std::size_t row = 0; row < kBlockFormats.size(); ++row) {
    const BlockFormatInfo& block = kBlockFormats[row];
    if (!block.in_gguf()) continue;
    const std::string_view name(kBlockNames[row].data(), block.name.size());
    *at++ = {static_cast<std::uint32_t>(block.gguf_type), name, block.values, block.bytes, block.id};
  }
  std::ranges::sort(types, {}, &GgufTensorType::id);
  return types;
}();

}  // namespace

std::string_view name(GgufType type) noexcept {
  const auto index = static_cast<std::size_t>(type);
  return index < kValueNames.size() ? kValueNames[index] : "unknown";
}

std::span<const GgufTensorType> gguf_tensor_types() noexcept { return kTensorTypes; }

const GgufTensorType& gguf_tensor_type(Format format) {
  const auto found = std::ranges::find(kTensorTypes, format, &GgufTensorType::format);
  if (found == std::end(kTensorTypes)) throw UnsupportedError(fmt::format("GGUF has no type {}", format.name()));
  return *found;
}

namespace files {

std::size_t gguf_element_bytes(GgufType type) noexcept {
  std::size_t bytes = 0;
  with_number_type(type, [&]<class T>(T) { bytes = sizeof(T); });
  return bytes;
}

const GgufTensorType* find_gguf_tensor_type(std::uint32_t id) noexcept {
  const auto found = std::ranges::find(kTensorTypes, id, &GgufTensorType::id);
  return found == std::end(kTensorTypes) ? nullptr : &*found;
}

std::size_t gguf_tensor_bytes(const GgufTensorType& type, const Shape& shape) {
  const auto values = static_cast<std::size_t>(type.values);
  if (shape.last() % values != 0) {
    throw ShapeError(fmt::format("rows of {} elements are not whole blocks: {} packs {} at a time", shape.last(),
                                 type.name, values));
  }
  if (shape.elements() > static_cast<std::size_t>(std::numeric_limits<std::int64_t>::max())) {
    throw_overflow("the elements of a tensor");
  }
  return checked_mul(shape.elements() / values, static_cast<std::size_t>(type.bytes), "the size of a tensor");
}

std::string gguf_name_problem(std::string_view text, std::size_t max_bytes) {
  if (text.empty()) return "is empty";
  if (text.size() > max_bytes) return fmt::format("has {} bytes, and at most {} are allowed", text.size(), max_bytes);
  for (std::size_t at = 0; at < text.size();) {
    const auto code = static_cast<unsigned char>(text[at]);
    if (code < 0x20 || code == 0x7F) return fmt::format("holds the control character {}", code);
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return fmt::format("is not UTF-8 at its byte {}", at);
    at += length;
  }
  return {};
}

}  // namespace files
}  // namespace imago
