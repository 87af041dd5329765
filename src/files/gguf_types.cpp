#include <fmt/format.h>

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
constexpr GgufTensorType blocks(std::uint32_t id, std::string_view name, BlockFormat format) {
  return {id, name, info(format).values, info(format).bytes, format};
}
/// Types that imago names and copies.
constexpr GgufTensorType named(std::uint32_t id, std::string_view name, int values, int bytes) {
  return {id, name, values, bytes, std::nullopt};
}

constexpr GgufTensorType kTensorTypes[] = {
    plain(0, "F32", DType::float32),
    plain(1, "F16", DType::float16),
    blocks(2, "Q4_0", BlockFormat::q4_0),
    blocks(3, "Q4_1", BlockFormat::q4_1),
    blocks(6, "Q5_0", BlockFormat::q5_0),
    blocks(7, "Q5_1", BlockFormat::q5_1),
    blocks(8, "Q8_0", BlockFormat::q8_0),
    named(9, "Q8_1", 32, 36),
    blocks(10, "Q2_K", BlockFormat::q2_k),
    blocks(11, "Q3_K", BlockFormat::q3_k),
    blocks(12, "Q4_K", BlockFormat::q4_k),
    blocks(13, "Q5_K", BlockFormat::q5_k),
    blocks(14, "Q6_K", BlockFormat::q6_k),
    named(15, "Q8_K", 256, 292),
    named(16, "IQ2_XXS", 256, 66),
    named(17, "IQ2_XS", 256, 74),
    named(18, "IQ3_XXS", 256, 98),
    named(19, "IQ1_S", 256, 50),
    blocks(20, "IQ4_NL", BlockFormat::iq4_nl),
    named(21, "IQ3_S", 256, 110),
    named(22, "IQ2_S", 256, 82),
    blocks(23, "IQ4_XS", BlockFormat::iq4_xs),
    plain(24, "I8", DType::int8),
    plain(25, "I16", DType::int16),
    plain(26, "I32", DType::int32),
    plain(27, "I64", DType::int64),
    plain(28, "F64", DType::float64),
    named(29, "IQ1_M", 256, 56),
    plain(30, "BF16", DType::bfloat16),
    blocks(34, "TQ1_0", BlockFormat::tq1_0),
    blocks(35, "TQ2_0", BlockFormat::tq2_0),
    blocks(39, "MXFP4", BlockFormat::mxfp4),
    blocks(40, "NVFP4", BlockFormat::nvfp4),
    named(41, "Q1_0", 128, 18),
    named(42, "Q2_0", 64, 18),
};

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
  switch (type) {
    case GgufType::u8:
    case GgufType::i8:
    case GgufType::boolean: return 1;
    case GgufType::u16:
    case GgufType::i16: return 2;
    case GgufType::u32:
    case GgufType::i32:
    case GgufType::f32: return 4;
    case GgufType::u64:
    case GgufType::i64:
    case GgufType::f64: return 8;
    case GgufType::string:
    case GgufType::array: break;
  }
  return 0;
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
