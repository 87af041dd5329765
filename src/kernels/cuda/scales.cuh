#pragma once

// Scales of packed weights, as a thread takes them for one group of 32:
//   kBytes       bytes of a group in Planes::scales (0, 1, 2 or 4)
//   kSuperBytes  bytes of eight groups there, apart from these (0, 2 or 4)
//   kSuperWords  words that `super` takes: one with those bytes, or with kHidesSuper the first of the eight groups'
//   kParts       scales of a group: one, or two for its halves
//   kHasMin      whether something is subtracted
//   kRow         a dtype: scales in Planes::row_scales, and Planes::zero is subtracted from codes
//   kSubs        scales are small integers under floats for eight groups
//   read         the bytes of the group in the low bits of a word, the words of its super-block, the row scale ->
//   numbers subs, super  with kSubs, the two factors of these, which have kUnit besides

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
  IMAGO_HD static GroupScale read(std::uint32_t group, const std::uint32_t* supers, float) noexcept {
    const SuperScale super = Scales::super(supers);
    return SuperScale{super.scale * Scales::kUnit, super.min * Scales::kUnit} * Scales::subs(group);
  }
};

/// Scales of super-blocks, if there are any, have bytes of their own.
struct ShowsSuper {
  static constexpr bool kHidesSuper = false;
  static constexpr int kSuperWords = 1;
  static constexpr float kUnit = 1;
};

/// Integers of six bits leave two of each byte: the lowest, where the scales of the super-block are. 16 bytes hold 32
/// bits of these, eight 16.
template <int kWords>
struct HidesSuper {
  static constexpr bool kHidesSuper = true;
  static constexpr int kSuperBytes = 0, kSuperWords = kWords;
  static constexpr float kUnit = 0.25f;  ///< of integers that are read with room for those bits
  static constexpr std::uint32_t kHidden = 0x03030303u;

  IMAGO_HD static std::uint32_t hidden(const std::uint32_t* words) noexcept {
    std::uint32_t bits = words[kWords - 1] & kHidden;
    IMAGO_UNROLL
    for (int w = kWords - 2; w >= 0; --w) bits = bits * 4 + (words[w] & kHidden);
    if constexpr (kWords == 4) return bits;
    return pick_bytes(bits * 0x1001u, 0, 0x4431u);  // nibbles 0 and 1, 2 and 3 of four bytes, brought together
  }
};

/// One binary16, and perhaps the value of code 0 after it: q4_0, q5_0, q8_0, iq4_nl; q4_1, q5_1.
template <bool kMin>
struct ScaleHalf : ShowsSuper {
  static constexpr int kBytes = kMin ? 4 : 2, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = kMin, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, const std::uint32_t*, float) noexcept {
    const float scale = float_of_half(static_cast<std::uint16_t>(group & 0xFFFFu));
    return {{scale, scale}, {kMin ? -float_of_half(static_cast<std::uint16_t>(group >> 16)) : 0.0f, 0.0f}};
  }
};

/// Bytes s and m with room for two bits, under two binary16 for eight groups: q4_k, q5_k.
struct ScaleSubMin : SubsUnderSuper<ScaleSubMin>, HidesSuper<4> {
  static constexpr int kBytes = 2, kParts = 1;
  static constexpr bool kHasMin = true;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{static_cast<std::int32_t>(group & 0xFCu), 0}, {static_cast<std::int32_t>(group >> 8 & 0xFCu), 0}};
  }
  IMAGO_HD static SuperScale super(const std::uint32_t* words) noexcept {
    return super_of_scale_and_min(hidden(words));
  }
};

/// Per half a byte with s in its low and m in its high half, under two binary16 for eight groups: q2_k.
struct ScaleHalvesMin : SubsUnderSuper<ScaleHalvesMin>, ShowsSuper {
  static constexpr int kBytes = 2, kSuperBytes = 4, kParts = 2;
  static constexpr bool kHasMin = true;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    const auto nibble = [&](int i) { return static_cast<std::int32_t>(group >> 4 * i & 15u); };
    return {{nibble(0), nibble(2)}, {nibble(1), nibble(3)}};
  }
  IMAGO_HD static SuperScale super(const std::uint32_t* words) noexcept { return super_of_scale_and_min(words[0]); }
};

/// Per half a signed byte, under one binary16 for eight groups: q6_k.
struct ScaleHalves : SubsUnderSuper<ScaleHalves>, ShowsSuper {
  static constexpr int kBytes = 2, kSuperBytes = 2, kParts = 2;
  static constexpr bool kHasMin = false;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{signed_byte(group, 0), signed_byte(group, 1)}, {0, 0}};
  }
  IMAGO_HD static SuperScale super(const std::uint32_t* words) noexcept { return super_of_scale(words[0]); }
};

/// The same of six bits, with room for two: q3_k.
struct ScaleSmallHalves : SubsUnderSuper<ScaleSmallHalves>, HidesSuper<2> {
  static constexpr int kBytes = 2, kParts = 2;
  static constexpr bool kHasMin = false;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept { return ScaleHalves::subs(group & ~kHidden); }
  IMAGO_HD static SuperScale super(const std::uint32_t* words) noexcept { return super_of_scale(hidden(words)); }
};

/// A signed byte with room for two bits, under one binary16 for eight groups: iq4_xs.
struct ScaleSub : SubsUnderSuper<ScaleSub>, HidesSuper<2> {
  static constexpr int kBytes = 1, kParts = 1;
  static constexpr bool kHasMin = false;
  IMAGO_HD static SubScales subs(std::uint32_t group) noexcept {
    return {{signed_byte(group & ~kHidden, 0), 0}, {0, 0}};
  }
  IMAGO_HD static SuperScale super(const std::uint32_t* words) noexcept { return super_of_scale(hidden(words)); }
};

/// One binary16 for eight groups: tq1_0, tq2_0.
struct ScaleSuper : ShowsSuper {
  static constexpr int kBytes = 0, kSuperBytes = 2, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t, const std::uint32_t* super, float) noexcept {
    return {{float_of_half(static_cast<std::uint16_t>(super[0] & 0xFFFFu)), 0.0f}, {0.0f, 0.0f}};
  }
};

/// An exponent, for levels that are doubled: mxfp4. 2^(exponent - 128), of which the two smallest are subnormal.
struct ScaleExponent : ShowsSuper {
  static constexpr int kBytes = 1, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, const std::uint32_t*, float) noexcept {
    const std::uint32_t exponent = group & 0xFFu;
    const float scale = float_of_bits(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
    return {{scale, 0.0f}, {0.0f, 0.0f}};
  }
};

/// Per half an unsigned E4M3 code, for levels that are doubled: nvfp4. NaN (0x7F) was made 0 by the layout.
struct ScaleSmallFloat : ShowsSuper {
  static constexpr int kBytes = 2, kSuperBytes = 0, kParts = 2;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, const std::uint32_t*, float) noexcept {
    return {{times(float_of_bits((group & 0x7Fu) << 20), 0x1p119f),
             times(float_of_bits((group >> 8 & 0x7Fu) << 20), 0x1p119f)},
            {0.0f, 0.0f}};
  }
};

/// float32: entity_q4_0.
struct ScaleFloat : ShowsSuper {
  static constexpr int kBytes = 4, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = false, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t group, const std::uint32_t*, float) noexcept {
    return {{float_of_bits(group), 0.0f}, {0.0f, 0.0f}};
  }
};

/// float32, one per row or per 32, 64 or 128 columns: dtypes.
struct ScaleRow : ShowsSuper {
  static constexpr int kBytes = 0, kSuperBytes = 0, kParts = 1;
  static constexpr bool kHasMin = false, kRow = true, kSubs = false;
  IMAGO_HD static GroupScale read(std::uint32_t, const std::uint32_t*, float row) noexcept {
    return {{row, 0.0f}, {0.0f, 0.0f}};
  }
};

}  // namespace imago::kernels::cuda
