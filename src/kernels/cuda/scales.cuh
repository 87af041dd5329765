#pragma once

// Scales of packed weights in the planes, as a thread takes them for one group of 32:
//   kBytes       bytes of a group in Planes::scales (0, 1, 2 or 4)
//   kSuperBytes  bytes of eight groups in Planes::supers (0, 2 or 4)
//   kParts       scales of a group: one, or two for its halves
//   kHasMin      whether something is subtracted
//   kRow         a dtype: scales in Planes::row_scales, and Planes::zero is subtracted from codes
//   read         the bytes of Planes::scales and ::supers in the low bits of a word, the row scale -> numbers

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// value = scale[part] · code - min[part].
struct GroupScale {
  float scale[2];
  float min[2];
};

/// One binary16, and perhaps the value of code 0 behind it: q4_0, q5_0, q8_0, iq4_nl; q4_1, q5_1.
template <bool kMin>
struct ScaleHalf {
  static constexpr int kBytes = kMin ? 4 : 2, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = kMin, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(group & 0xFFFFu));
    return {{scale, scale}, {kMin ? -float_of_half(static_cast<std::uint16_t>(group >> 16)) : 0.0f, 0.0f}};
  }
};

/// Bytes s and m under two binary16 for eight groups: q4_k, q5_k.
struct ScaleSubMin {
  static constexpr int kBytes = 2, kSuperBytes = 4, kParts = 1;
  static constexpr bool kHasMin = true, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t super, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu));
    const float min = float_of_half(static_cast<std::uint16_t>(super >> 16));
    return {{times(scale, static_cast<float>(group & 0xFFu)), 0.0f},
            {times(min, static_cast<float>(group >> 8 & 0xFFu)), 0.0f}};
  }
};

/// Per half a byte with s in its low and m in its high half, under two binary16 for eight groups: q2_k.
struct ScaleHalvesMin {
  static constexpr int kBytes = 2, kSuperBytes = 4, kParts = 2;
  static constexpr bool kHasMin = true, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t super, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu));
    const float min = float_of_half(static_cast<std::uint16_t>(super >> 16));
    return {{times(scale, static_cast<float>(group & 15u)), times(scale, static_cast<float>(group >> 8 & 15u))},
            {times(min, static_cast<float>(group >> 4 & 15u)), times(min, static_cast<float>(group >> 12 & 15u))}};
  }
};

/// Per half a signed byte, under one binary16 for eight groups: q3_k, q6_k.
struct ScaleHalves {
  static constexpr int kBytes = 2, kSuperBytes = 2, kParts = 2;
  static constexpr bool kHasMin = false, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t super, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu));
    return {{times(scale, static_cast<float>(signed_byte(group, 0))),
             times(scale, static_cast<float>(signed_byte(group, 1)))},
            {0.0f, 0.0f}};
  }
};

/// A signed byte under one binary16 for eight groups: iq4_xs.
struct ScaleSub {
  static constexpr int kBytes = 1, kSuperBytes = 2, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t super, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu));
    return {{times(scale, static_cast<float>(signed_byte(group, 0))), 0.0f}, {0.0f, 0.0f}};
  }
};

/// One binary16 for eight groups: tq1_0, tq2_0.
struct ScaleSuper {
  static constexpr int kBytes = 0, kSuperBytes = 2, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t, std::uint32_t super, float) noexcept {
    return {{float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu)), 0.0f}, {0.0f, 0.0f}};
  }
};

/// An exponent, for levels that are doubled: mxfp4. 2^(exponent - 128), of which the two smallest are subnormal.
struct ScaleExponent {
  static constexpr int kBytes = 1, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    const std::uint32_t exponent = group & 0xFFu;
    const float scale = float_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return {{scale, 0.0f}, {0.0f, 0.0f}};
  }
};

/// Per half an unsigned E4M3 code, for levels that are doubled: nvfp4. NaN (0x7F) was made 0 by the layout.
struct ScaleSmallFloat {
  static constexpr int kBytes = 2, kSuperBytes = 0, kParts = 2;
  static constexpr bool kHasMin = false, kRow = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    return {{times(float_of_bits((group & 0x7Fu) << 20), 0x1p119f),
             times(float_of_bits((group >> 8 & 0x7Fu) << 20), 0x1p119f)},
            {0.0f, 0.0f}};
  }
};

/// float32, one per row or per 32, 64 or 128 columns: dtypes and entity_q4_0.
struct ScaleRow {
  static constexpr int kBytes = 0, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = true;
  IMAGO_HD static GroupScale read(std::uint32_t, std::uint32_t, float row) noexcept {
    return {{row, 0.0f}, {0.0f, 0.0f}};
  }
};

}  // namespace imago::kernels::cuda
