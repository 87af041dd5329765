#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "imago/dtype.h"

namespace imago {

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
  bool in_gguf;  ///< a type that users may name; false for entity_q4_0, which only `.entity` files hold
};

inline constexpr std::array<BlockFormatInfo, kBlockFormatCount> kBlockFormats = {{
    {BlockFormat::q4_0, "q4_0", 32, 18, true},
    {BlockFormat::q4_1, "q4_1", 32, 20, true},
    {BlockFormat::q5_0, "q5_0", 32, 22, true},
    {BlockFormat::q5_1, "q5_1", 32, 24, true},
    {BlockFormat::q8_0, "q8_0", 32, 34, true},
    {BlockFormat::q2_k, "q2_k", 256, 84, true},
    {BlockFormat::q3_k, "q3_k", 256, 110, true},
    {BlockFormat::q4_k, "q4_k", 256, 144, true},
    {BlockFormat::q5_k, "q5_k", 256, 176, true},
    {BlockFormat::q6_k, "q6_k", 256, 210, true},
    {BlockFormat::iq4_nl, "iq4_nl", 32, 18, true},
    {BlockFormat::iq4_xs, "iq4_xs", 256, 136, true},
    {BlockFormat::tq1_0, "tq1_0", 256, 54, true},
    {BlockFormat::tq2_0, "tq2_0", 256, 66, true},
    {BlockFormat::mxfp4, "mxfp4", 32, 17, true},
    {BlockFormat::nvfp4, "nvfp4", 64, 36, true},
    {BlockFormat::entity_q4_0, "entity_q4_0", 32, 20, false},
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

/// Bytes of `count` weights packed in `format`, scales of dtypes not included.
/// Throws ShapeError if `count` is no multiple of the block or the size overflows.
std::size_t packed_bytes(Format format, std::size_t count);

/// Reads a dtype name, alias or block format in any case; nullopt for anything else.
std::optional<Format> find_format(std::string_view text) noexcept;

/// As `find_format`, but an unknown name is a UsageError that lists the known ones.
Format parse_format(std::string_view text);

}  // namespace imago
