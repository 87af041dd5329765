#pragma once

// A block taken apart, the common ground of decoding, dot products and matrix kernels. Plain data: files with
// instruction-set flags include it.

#include <cstdint>

namespace imago::quant {

/// value[i] = scale[i / group] · code[i] - offset[i / group], with the group size of the format's BlockCodec.
struct Expanded {
  static constexpr int kMaxValues = 256;
  static constexpr int kMaxGroups = 16;
  alignas(64) std::int8_t codes[kMaxValues];
  alignas(64) float scales[kMaxGroups];
  alignas(64) float offsets[kMaxGroups];  // not set by formats without offsets
};

}  // namespace imago::quant
