#pragma once

// Scales of packed weights in the planes, as a thread takes them for one group of 32:
//   kBytes       bytes of a group in Planes::scales (0, 1, 2 or 4)
//   kSuperBytes  bytes of eight groups in Planes::supers (0, 2 or 4)
//   kParts       scales of a group: one, or two for its halves
//   kHasMin      whether something is subtracted
//   kRow         a dtype: scales in Planes::row_scales, and Planes::zero is subtracted from codes
//   kSubs        scales are small integers under floats for eight groups
//   read         the bytes of Planes::scales and ::supers in the low bits of a word, the row scale -> numbers
//   subs, super  with kSubs, the two factors of these

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// value = scale[part] · code - min[part].
struct GroupScale {
  float scale[2];
  float min[2];
};

/// Integers of a group, for each part.
struct SubScales {
  std::int32_t scale[2], min[2];
};
/// What they are multiplied with.
struct SuperScale {
  float scale, min;
};
IMAGO_HD GroupScale operator*(const SuperScale& super, const SubScales& subs) noexcept {
  const auto product = [](float a, std::int32_t b) { return times(a, static_cast<float>(b)); };
  return {{product(super.scale, subs.scale[0]), product(super.scale, subs.scale[1])},
          {product(super.min, subs.min[0]), product(super.min, subs.min[1])}};
}
IMAGO_HD SuperScale super_of_scale(std::uint32_t super) noexcept {
  return {float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu)), 0.0f};
}
IMAGO_HD SuperScale super_of_scale_and_min(std::uint32_t super) noexcept {
  return {float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu)),
          float_of_half(static_cast<std::uint16_t>(super >> 16))};
}

template <class Scales>
struct SubsUnderSuper {
  static constexpr bool kRow = false, kSubs = true;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t bits, float) noexcept {
    return Scales::super(bits) * Scales::subs(group);
  }
};

/// One binary16, and perhaps the value of code 0 behind it: q4_0, q5_0, q8_0, iq4_nl; q4_1, q5_1.
template <bool kMin>
struct ScaleHalf {
  static constexpr int kBytes = kMin ? 4 : 2, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = kMin, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(group & 0xFFFFu));
    return {{scale, scale}, {kMin ? -float_of_half(static_cast<std::uint16_t>(group >> 16)) : 0.0f, 0.0f}};
  }
};

/// Bytes s and m under two binary16 for eight groups: q4_k, q5_k.
struct ScaleSubMin : SubsUnderSuper<ScaleSubMin> {
  static constexpr int kBytes = 2, kSuperBytes = 4, kParts = 1;
  static constexpr bool kHasMin = true;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{static_cast<std::int32_t>(group & 0xFFu), 0}, {static_cast<std::int32_t>(group >> 8 & 0xFFu), 0}};
  }
  IMAGO_HD static SuperScale super(std::uint32_t bits) noexcept { return super_of_scale_and_min(bits); }
};

/// Per half a byte with s in its low and m in its high half, under two binary16 for eight groups: q2_k.
struct ScaleHalvesMin : SubsUnderSuper<ScaleHalvesMin> {
  static constexpr int kBytes = 2, kSuperBytes = 4, kParts = 2;
  static constexpr bool kHasMin = true;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    const auto nibble = [&](int i) { return static_cast<std::int32_t>(group >> 4 * i & 15u); };
    return {{nibble(0), nibble(2)}, {nibble(1), nibble(3)}};
  }
  IMAGO_HD static SuperScale super(std::uint32_t bits) noexcept { return super_of_scale_and_min(bits); }
};

/// Per half a signed byte, under one binary16 for eight groups: q3_k, q6_k.
struct ScaleHalves : SubsUnderSuper<ScaleHalves> {
  static constexpr int kBytes = 2, kSuperBytes = 2, kParts = 2;
  static constexpr bool kHasMin = false;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{signed_byte(group, 0), signed_byte(group, 1)}, {0, 0}};
  }
  IMAGO_HD static SuperScale super(std::uint32_t bits) noexcept { return super_of_scale(bits); }
};

/// A signed byte under one binary16 for eight groups: iq4_xs.
struct ScaleSub : SubsUnderSuper<ScaleSub> {
  static constexpr int kBytes = 1, kSuperBytes = 2, kParts = 1;
  static constexpr bool kHasMin = false;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{signed_byte(group, 0), 0}, {0, 0}};
  }
  IMAGO_HD static SuperScale super(std::uint32_t bits) noexcept { return super_of_scale(bits); }
};

/// One binary16 for eight groups: tq1_0, tq2_0.
struct ScaleSuper {
  static constexpr int kBytes = 0, kSuperBytes = 2, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t, std::uint32_t super, float) noexcept {
    return {{float_of_half(static_cast<std::uint16_t>(super & 0xFFFFu)), 0.0f}, {0.0f, 0.0f}};
  }
};

/// An exponent, for levels that are doubled: mxfp4. 2^(exponent - 128), of which the two smallest are subnormal.
struct ScaleExponent {
  static constexpr int kBytes = 1, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    const std::uint32_t exponent = group & 0xFFu;
    const float scale = float_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return {{scale, 0.0f}, {0.0f, 0.0f}};
  }
};

/// Per half an unsigned E4M3 code, for levels that are doubled: nvfp4. NaN (0x7F) was made 0 by the layout.
struct ScaleSmallFloat {
  static constexpr int kBytes = 2, kSuperBytes = 0, kParts = 2;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, std::uint32_t, float) noexcept {
    return {{times(float_of_bits((group & 0x7Fu) << 20), 0x1p119f),
             times(float_of_bits((group >> 8 & 0x7Fu) << 20), 0x1p119f)},
            {0.0f, 0.0f}};
  }
};

/// float32, one per row or per 32, 64 or 128 columns: dtypes and entity_q4_0.
struct ScaleRow {
  static constexpr int kBytes = 0, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = true, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t, std::uint32_t, float row) noexcept {
    return {{row, 0.0f}, {0.0f, 0.0f}};
  }
};

}  // namespace imago::kernels::cuda
