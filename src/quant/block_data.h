#pragma once

// Plain data of block formats. Files with instruction-set flags include it: no functions, and no includes that bring
// any.

#include <cstdint>

#include "quant/codebooks.h"

namespace imago::quant {

/// Numbers inside block structs. Blocks are read where they lie in a file or a buffer, at any address, so their fields
/// are bytes: every block type has alignment 1.
struct PackedHalf {
  std::uint8_t bytes[2];  // binary16, little-endian
};
struct PackedFloat {
  std::uint8_t bytes[4];  // float32, little-endian
};

/// What multiplies the levels of a group.
enum class ScaleKind : std::uint8_t {
  half,         ///< a binary16; with an offset a second one, which is added: value = scale · level + min
  single,       ///< a float32
  exponent,     ///< 2^(e - 128), e in a byte
  small_float,  ///< half an unsigned E4M3
  sub_scales,   ///< an integer times a binary16 of the super-block; with an offset, less an integer times a second one
};

/// The scales of a block as its ScaleKind stores them.
struct BlockScales {
  static constexpr int kMaxGroups = 16;
  std::uint32_t scale = 0;             // of the whole block: the code of a binary16, or of a float32
  std::uint32_t min = 0;               // likewise; 0 without offsets
  std::uint8_t subs[kMaxGroups] = {};  // per group: an integer (signed ones as two's complement), an exponent or E4M3
  std::uint8_t lows[kMaxGroups] = {};  // per group: the integer of the offset
};

/// A block taken apart: value[i] = scales[i / group] · codes[i] - offsets[i / group], with the group of its format.
struct Expanded {
  static constexpr int kMaxValues = 256;
  alignas(64) std::int8_t codes[kMaxValues];
  alignas(64) float scales[BlockScales::kMaxGroups];
  alignas(64) float offsets[BlockScales::kMaxGroups];  // not set by formats without offsets
};

}  // namespace imago::quant
