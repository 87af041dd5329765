#pragma once

// Numbers inside block structs. Blocks are read where they lie in a file or a buffer, at any address, so their fields
// are bytes: every block type has alignment 1. Plain data, for files with instruction-set flags too.

#include <cstdint>

namespace imago::quant {

/// A binary16 code, little-endian.
struct PackedHalf {
  std::uint8_t bytes[2];
};

/// A float32, little-endian.
struct PackedFloat {
  std::uint8_t bytes[4];
};

}  // namespace imago::quant
