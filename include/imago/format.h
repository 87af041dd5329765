#pragma once

// The types that weights are stored in: 21 scalar types, and block formats.

#include <array>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

namespace imago {

// ---- scalar types

/// The 21 scalar types. Ids are part of the file formats and never change. This header is the only place that lists
/// them: everything else goes through `visit`, `dtype_of` or the table `kDTypes`.
enum class DType : std::uint8_t {
  float64 = 0,
  float32,
  float16,
  bfloat16,
  fp8e4m3,
  fp8e5m2,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
  int4,
  uint4,
  fp4,
  int2,
  uint2,
  ternary,
  binary,
};

inline constexpr int kDTypeCount = 21;

/// One unpacked value ("code") of the types that C++ has no name for. Plain bits: arithmetic is done on the float
/// that `dequantize_value` (numeric.h) gives. Small integers are held sign-extended; binary is +1 or -1.
struct Half {
  std::uint16_t bits;
  bool operator==(const Half&) const = default;
};
struct BFloat16 {
  std::uint16_t bits;
  bool operator==(const BFloat16&) const = default;
};
struct Fp8E4M3 {
  std::uint8_t bits;
  bool operator==(const Fp8E4M3&) const = default;
};
struct Fp8E5M2 {
  std::uint8_t bits;
  bool operator==(const Fp8E5M2&) const = default;
};
struct Fp4 {
  std::uint8_t bits;  // low nibble: sign, E2M1
  bool operator==(const Fp4&) const = default;
};
struct Int4 {
  std::int8_t value;
  bool operator==(const Int4&) const = default;
};
struct UInt4 {
  std::uint8_t value;
  bool operator==(const UInt4&) const = default;
};
struct Int2 {
  std::int8_t value;
  bool operator==(const Int2&) const = default;
};
struct UInt2 {
  std::uint8_t value;
  bool operator==(const UInt2&) const = default;
};
struct Ternary {
  std::int8_t value;
  bool operator==(const Ternary&) const = default;
};
struct Binary {
  std::int8_t value;
  bool operator==(const Binary&) const = default;
};

enum class NumberKind : std::uint8_t {
  wide_float,        ///< float64 … bfloat16: the value itself, never scaled
  narrow_float,      ///< fp8, fp4: value = decode(code) · scale
  signed_integer,    ///< value = code · scale
  unsigned_integer,  ///< value = (code - zero point) · scale
  ternary,           ///< -scale, 0, +scale
  binary,            ///< -scale, +scale
};

/// Facts about one type. `scale_divisor` is Q, the largest code: a derived scale is max|w| / Q.
struct DTypeInfo {
  DType id;
  std::string_view name;
  std::array<std::string_view, 2> aliases;  ///< accepted when reading; empty entries are none
  int bits;                                 ///< bits per weight in memory and in files
  NumberKind kind;
  float scale_divisor;  ///< 0: the type has no scale
};

inline constexpr std::array<DTypeInfo, kDTypeCount> kDTypes = {{
    {DType::float64, "float64", {"fp64", "f64"}, 64, NumberKind::wide_float, 0},
    {DType::float32, "float32", {"fp32", "f32"}, 32, NumberKind::wide_float, 0},
    {DType::float16, "float16", {"fp16", "f16"}, 16, NumberKind::wide_float, 0},
    {DType::bfloat16, "bfloat16", {"bf16"}, 16, NumberKind::wide_float, 0},
    {DType::fp8e4m3, "fp8e4m3", {"fp8"}, 8, NumberKind::narrow_float, 448},
    {DType::fp8e5m2, "fp8e5m2", {}, 8, NumberKind::narrow_float, 57344},
    {DType::int64, "int64", {"i64"}, 64, NumberKind::signed_integer, 1048576},
    {DType::int32, "int32", {"i32"}, 32, NumberKind::signed_integer, 1048576},
    {DType::int16, "int16", {"i16"}, 16, NumberKind::signed_integer, 32767},
    {DType::int8, "int8", {"i8"}, 8, NumberKind::signed_integer, 127},
    {DType::uint64, "uint64", {"u64"}, 64, NumberKind::unsigned_integer, 1048576},
    {DType::uint32, "uint32", {"u32"}, 32, NumberKind::unsigned_integer, 1048576},
    {DType::uint16, "uint16", {"u16"}, 16, NumberKind::unsigned_integer, 65535},
    {DType::uint8, "uint8", {"u8"}, 8, NumberKind::unsigned_integer, 255},
    {DType::int4, "int4", {}, 4, NumberKind::signed_integer, 7},
    {DType::uint4, "uint4", {}, 4, NumberKind::unsigned_integer, 15},
    {DType::fp4, "fp4", {"f4"}, 4, NumberKind::narrow_float, 6},
    {DType::int2, "int2", {}, 2, NumberKind::signed_integer, 1},
    {DType::uint2, "uint2", {}, 2, NumberKind::unsigned_integer, 3},
    {DType::ternary, "ternary", {}, 2, NumberKind::ternary, 1},
    {DType::binary, "binary", {}, 1, NumberKind::binary, 1},
}};

/// Calls `f(std::type_identity<T>{})` with the code type T of `dtype` and returns what it returns.
/// REQUIRES: `dtype` is one of the 21 enumerators (names and ids from outside go through `parse_dtype` first).
template <class F>
constexpr decltype(auto) visit(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float64: return std::forward<F>(f)(std::type_identity<double>{});
    case DType::float32: return std::forward<F>(f)(std::type_identity<float>{});
    case DType::float16: return std::forward<F>(f)(std::type_identity<Half>{});
    case DType::bfloat16: return std::forward<F>(f)(std::type_identity<BFloat16>{});
    case DType::fp8e4m3: return std::forward<F>(f)(std::type_identity<Fp8E4M3>{});
    case DType::fp8e5m2: return std::forward<F>(f)(std::type_identity<Fp8E5M2>{});
    case DType::int64: return std::forward<F>(f)(std::type_identity<std::int64_t>{});
    case DType::int32: return std::forward<F>(f)(std::type_identity<std::int32_t>{});
    case DType::int16: return std::forward<F>(f)(std::type_identity<std::int16_t>{});
    case DType::int8: return std::forward<F>(f)(std::type_identity<std::int8_t>{});
    case DType::uint64: return std::forward<F>(f)(std::type_identity<std::uint64_t>{});
    case DType::uint32: return std::forward<F>(f)(std::type_identity<std::uint32_t>{});
    case DType::uint16: return std::forward<F>(f)(std::type_identity<std::uint16_t>{});
    case DType::uint8: return std::forward<F>(f)(std::type_identity<std::uint8_t>{});
    case DType::int4: return std::forward<F>(f)(std::type_identity<Int4>{});
    case DType::uint4: return std::forward<F>(f)(std::type_identity<UInt4>{});
    case DType::fp4: return std::forward<F>(f)(std::type_identity<Fp4>{});
    case DType::int2: return std::forward<F>(f)(std::type_identity<Int2>{});
    case DType::uint2: return std::forward<F>(f)(std::type_identity<UInt2>{});
    case DType::ternary: return std::forward<F>(f)(std::type_identity<Ternary>{});
    case DType::binary: break;
  }
  return std::forward<F>(f)(std::type_identity<Binary>{});
}

namespace detail {
template <class T>
constexpr std::optional<DType> find_dtype() {
  for (const DTypeInfo& info : kDTypes) {
    const bool same = visit(info.id, []<class U>(std::type_identity<U>) { return std::same_as<T, U>; });
    if (same) return info.id;
  }
  return std::nullopt;
}
}  // namespace detail

/// A code type of one of the 21 dtypes: `float`, `std::int8_t`, `Half`, `Ternary`, …
template <class T>
concept Numeric = detail::find_dtype<T>()
.has_value();

/// The dtype whose codes are T.
template <Numeric T>
inline constexpr DType dtype_of = *detail::find_dtype<T>();

/// Facts of `dtype`. REQUIRES: one of the 21 enumerators.
constexpr const DTypeInfo& info(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)]; }

constexpr std::string_view name(DType dtype) noexcept { return info(dtype).name; }
constexpr int bits(DType dtype) noexcept { return info(dtype).bits; }

/// True for the types whose value is code · scale.
constexpr bool is_scaled(DType dtype) noexcept { return info(dtype).kind != NumberKind::wide_float; }

/// Reads a name or alias in any case; nullopt for anything else, also for an empty string.
std::optional<DType> find_dtype(std::string_view text) noexcept;

/// As `find_dtype`, but an unknown name is a UsageError that lists the known ones.
DType parse_dtype(std::string_view text);

// ---- block formats

/// Block formats: a fixed number of weights share scales that travel with them. Byte layouts are those of GGUF,
/// except `entity_q4_0`, the original engine's own Q4_0 with a float32 scale (found in `.entity` files only).
enum class BlockFormat : std::uint8_t {
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  tq1_0,
  tq2_0,
  mxfp4,
  nvfp4,
  entity_q4_0,
};

inline constexpr int kBlockFormatCount = 17;

/// Facts about one block format. `values` weights take `bytes` bytes.
struct BlockFormatInfo {
  BlockFormat id;
  std::string_view name;
  int values;
  int bytes;
  int gguf_type;                  ///< its number in GGUF files; -1: they cannot hold it
  std::array<int, 2> file_types;  ///< llama.cpp's numbers for files of this type: all tensors alike, or the usual mix
  std::string_view rule;          ///< what a weight is, for listings

  /// A type that users may name; false for entity_q4_0, which only `.entity` files hold.
  constexpr bool in_gguf() const noexcept { return gguf_type >= 0; }
};

inline constexpr std::array<BlockFormatInfo, kBlockFormatCount> kBlockFormats = {{
    {BlockFormat::q4_0, "q4_0", 32, 18, 2, {2, 2}, "code · half"},
    {BlockFormat::q4_1, "q4_1", 32, 20, 3, {3, 3}, "code · half + half"},
    {BlockFormat::q5_0, "q5_0", 32, 22, 6, {8, 8}, "code · half"},
    {BlockFormat::q5_1, "q5_1", 32, 24, 7, {9, 9}, "code · half + half"},
    {BlockFormat::q8_0, "q8_0", 32, 34, 8, {7, 7}, "code · half"},
    {BlockFormat::q2_k, "q2_k", 256, 84, 10, {21, 10}, "per 16: code · 4-bit scale - 4-bit minimum, a half for each"},
    {BlockFormat::q3_k, "q3_k", 256, 110, 11, {11, 12}, "per 16: code · 6-bit scale, a half for all"},
    {BlockFormat::q4_k, "q4_k", 256, 144, 12, {14, 15}, "per 32: code · 6-bit scale - 6-bit minimum, a half for each"},
    {BlockFormat::q5_k, "q5_k", 256, 176, 13, {16, 17}, "per 32: code · 6-bit scale - 6-bit minimum, a half for each"},
    {BlockFormat::q6_k, "q6_k", 256, 210, 14, {18, 18}, "per 16: code · 8-bit scale, a half for all"},
    {BlockFormat::iq4_nl, "iq4_nl", 32, 18, 20, {25, 25}, "one of 16 uneven steps · half"},
    {BlockFormat::iq4_xs,
     "iq4_xs",
     256,
     136,
     23,
     {30, 30},
     "per 32: one of 16 uneven steps · 6-bit scale, a half for all"},
    {BlockFormat::tq1_0, "tq1_0", 256, 54, 34, {36, 36}, "-1, 0 or 1 · half, five to a byte"},
    {BlockFormat::tq2_0, "tq2_0", 256, 66, 35, {37, 37}, "-1, 0 or 1 · half, four to a byte"},
    {BlockFormat::mxfp4, "mxfp4", 32, 17, 39, {38, 38}, "fp4 · power of two"},
    {BlockFormat::nvfp4, "nvfp4", 64, 36, 40, {39, 39}, "per 16: fp4 · fp8e4m3"},
    {BlockFormat::entity_q4_0, "entity_q4_0", 32, 20, -1, {-1, -1}, "code · float32"},
}};

constexpr const BlockFormatInfo& info(BlockFormat format) noexcept {
  return kBlockFormats[static_cast<std::size_t>(format)];
}
constexpr std::string_view name(BlockFormat format) noexcept { return info(format).name; }

/// Any type a weight can be stored in: one of the 21 dtypes or a block format. A one-byte value.
class Format {
 public:
  constexpr Format(DType dtype) noexcept : id_(static_cast<std::uint8_t>(dtype)) {}  // NOLINT: implicit on purpose
  constexpr Format(BlockFormat block) noexcept                                       // NOLINT: implicit on purpose
      : id_(static_cast<std::uint8_t>(kFirstBlock + static_cast<std::uint8_t>(block))) {}

  constexpr bool is_block() const noexcept { return id_ >= kFirstBlock; }
  /// REQUIRES: !is_block().
  constexpr DType dtype() const noexcept { return static_cast<DType>(id_); }
  /// REQUIRES: is_block().
  constexpr BlockFormat block() const noexcept { return static_cast<BlockFormat>(id_ - kFirstBlock); }

  /// Weights that are stored together: the block size, 1 for dtypes (bits of neighbours may share a byte).
  constexpr int block_values() const noexcept { return is_block() ? info(block()).values : 1; }
  /// Weights and bytes of the least that can be packed by itself: a block, or eight weights of a dtype.
  constexpr int unit_values() const noexcept { return is_block() ? info(block()).values : 8; }
  constexpr int unit_bytes() const noexcept { return is_block() ? info(block()).bytes : imago::bits(dtype()); }
  /// Scales are stored beside the packed weights: value = code · scale. Block formats have theirs inside the blocks.
  constexpr bool has_scales() const noexcept { return !is_block() && is_scaled(dtype()); }
  /// The value itself, without any scale: float64, float32, float16, bfloat16.
  constexpr bool is_wide() const noexcept { return !is_block() && !is_scaled(dtype()); }
  /// A type of weights in GGUF files: wide floats and all block formats but entity_q4_0.
  constexpr bool in_gguf() const noexcept { return is_block() ? info(block()).in_gguf() : is_wide(); }
  /// What weights can be converted to: all but entity_q4_0, which only `.entity` files hold.
  constexpr bool is_target() const noexcept { return !is_block() || in_gguf(); }
  constexpr std::string_view name() const noexcept { return is_block() ? imago::name(block()) : imago::name(dtype()); }
  /// Bits per weight, scales of a block format included.
  constexpr double bits() const noexcept {
    return is_block() ? 8.0 * info(block()).bytes / info(block()).values : imago::bits(dtype());
  }

  friend constexpr auto operator<=>(Format, Format) noexcept = default;

 private:
  static constexpr std::uint8_t kFirstBlock = 32;  // room for dtypes to come
  std::uint8_t id_;
};

/// All dtypes, then all block formats.
inline constexpr auto kFormats = []<std::size_t... i>(std::index_sequence<i...>) {
  constexpr std::size_t kFirst = kDTypeCount;
  return std::array<Format, sizeof...(i)>{
      (i < kFirst ? Format(static_cast<DType>(i)) : Format(static_cast<BlockFormat>(i - kFirst)))...};
}
(std::make_index_sequence<kDTypeCount + kBlockFormatCount>{});

/// Bytes of `count` weights packed in `format`, scales of dtypes not included.
/// Throws ShapeError if `count` is not a multiple of the block or the size overflows.
std::size_t packed_bytes(Format format, std::size_t count);

/// Reads a dtype name, alias or block format in any case; nullopt for anything else.
std::optional<Format> find_format(std::string_view text) noexcept;

/// As `find_format`, but an unknown name is a UsageError that lists the known ones.
Format parse_format(std::string_view text);

}  // namespace imago
