#pragma once

// From sums of codes times activations to results, in the tiles of the streaming matvec. A lane has the sums of two
// neighbouring groups; their scales are applied with fewer instructions than those of one group after the other take.
// Powers of two are left to the activations, and small integers multiply the sums while these are integers too.

#include <cstdint>

#include "kernels/cuda/code_dot.cuh"
#include "kernels/cuda/scales.cuh"

namespace imago::kernels::cuda {

/// Scales of two groups as they lie in memory: those of both in words[0], or in a word each if they have four bytes;
/// and what Scales::super takes. Of dtypes the numbers in `rows`.
struct PairBits {
  std::uint32_t words[2] = {}, supers[4] = {};
  float rows[2] = {1, 1};

  template <class Scales>
  IMAGO_HD std::uint32_t group(int u) const noexcept {
    return Scales::kBytes == 4 ? words[u] : words[0] >> 8 * Scales::kBytes * u;
  }
};

/// Scales that are floats, of two groups: kUnit times these numbers.
template <class Scales>
struct PairScales {
  static constexpr float kUnit = 1;
  float scale[2][Scales::kParts], min[2];

  IMAGO_HD explicit PairScales(const PairBits& bits) noexcept {
    IMAGO_UNROLL
    for (int u = 0; u < 2; ++u) {
      const GroupScale s = Scales::read(bits.group<Scales>(u), bits.supers, bits.rows[u]);
      IMAGO_UNROLL
      for (int part = 0; part < Scales::kParts; ++part) scale[u][part] = s.scale[part];
      min[u] = s.min[0];
    }
  }
};

/// An exponent in its place is a power of two, but for 0, which stands for 2^-127 then: half of the next one. 255, a
/// NaN in the standard, becomes infinite.
template <>
struct PairScales<ScaleExponent> {
  static constexpr float kUnit = 0.5f;
  float scale[2][1];

  IMAGO_HD explicit PairScales(const PairBits& bits) noexcept {
    IMAGO_UNROLL
    for (int u = 0; u < 2; ++u) {
      scale[u][0] = float_of_bits(larger_of((bits.words[0] >> 8 * u & 0xFFu) << 23, 0x00400000u));
    }
  }
};

/// Exponents and mantissas of E4M3, moved to their places in binary16, are 2^-8 of the number: subnormal ones too.
template <>
struct PairScales<ScaleSmallFloat> {
  static constexpr float kUnit = 128;  // levels are doubled
  float scale[2][2];

  IMAGO_HD explicit PairScales(const PairBits& bits) noexcept {
    floats_of_halves((bits.words[0] & 0x007F007Fu) << 7, scale[0][0], scale[1][0]);
    floats_of_halves(bits.words[0] >> 1 & 0x3F803F80u, scale[0][1], scale[1][1]);
  }
};

/// What activations of a group bring along, and what becomes of two groups' sums.
template <class Form>
struct TileScales {
  using Scales = typename Form::Scales;
  using Dot = CodeDot<typename Form::Codes>;
  static constexpr int kHalves = Scales::kParts;  ///< of a group, with scales of their own
  static constexpr bool kHasZero = Form::kZeroOfFormat != 0.0f || (Scales::kRow && !kAreLevels<typename Form::Codes>);
  static constexpr bool kHasSum = Scales::kHasMin || kHasZero;
  /// Words of a group of activations: a scale, then for each half the sum of its codes, if it is asked for: times the
  /// scale and the zero point, or as an integer (sum_bits).
  static constexpr int kXWords = !kHasSum ? 1 : kHalves == 1 ? 2 : 4;
  static constexpr bool kSumsAreIntegers = kHasSum && Scales::kSubs && !Scales::kHasMin;
  static_assert(!kSumsAreIntegers || kHalves == 2);

  /// Sums of both halves have this factor in the end.
  static constexpr int kFactor = static_cast<int>(Dot::factor(kHalves - 1, kHalves));
  static constexpr int kFirstFactor = kFactor / static_cast<int>(Dot::factor(0, kHalves));
  static constexpr float unit() noexcept {
    if constexpr (Scales::kSubs) {
      return Form::kStep / kFactor * Scales::kUnit;
    } else {
      return Form::kStep / kFactor * PairScales<Scales>::kUnit;
    }
  }

  /// Of codes that add up to `sum`, and to `scaled` times their scale. `zero`: of the form.
  IMAGO_HD static std::uint32_t sum_bits(float scaled, std::int32_t sum, float zero) noexcept {
    if constexpr (kSumsAreIntegers) {
      return static_cast<std::uint32_t>(sum * static_cast<std::int32_t>(Form::kZeroOfFormat) * kFactor);
    } else {
      return bits_of_float(Scales::kHasMin ? scaled * Scales::kUnit : scaled * zero);
    }
  }

  /// result + what two groups have: their sums by halves, and their activations.
  IMAGO_HD static float add(const PairBits& bits, const std::int32_t (&dots)[2][kHalves],
                            const std::uint32_t (&x)[2][kXWords], float result) noexcept {
    if constexpr (Scales::kSubs) {
      return add_subs(bits, dots, x, result);
    } else {
      return add_floats(bits, dots, x, result);
    }
  }

 private:
  IMAGO_HD static float add_floats(const PairBits& bits, const std::int32_t (&dots)[2][kHalves],
                                   const std::uint32_t (&x)[2][kXWords], float result) noexcept {
    static_assert(kHalves == 1 || !kHasSum);
    const PairScales<Scales> s(bits);
    IMAGO_UNROLL
    for (int u = 0; u < 2; ++u) {
      const float x_scale = float_of_bits(x[u][0]);
      if constexpr (kHasSum) {
        const float sum = float_of_bits(x[u][1]);
        float value = x_scale * static_cast<float>(dots[u][0]);
        if constexpr (!Scales::kHasMin) value -= sum;
        result += s.scale[u][0] * value;
        if constexpr (Scales::kHasMin) result -= s.min[u] * sum;
      } else {
        float value = s.scale[u][0] * static_cast<float>(dots[u][0]);
        if constexpr (kHalves == 2) value += s.scale[u][1] * static_cast<float>(dots[u][1]);
        result += x_scale * value;
      }
    }
    return result;
  }

  IMAGO_HD static float add_subs(const PairBits& bits, const std::int32_t (&dots)[2][kHalves],
                                 const std::uint32_t (&x)[2][kXWords], float result) noexcept {
    float sum = 0, mins = 0;
    IMAGO_UNROLL
    for (int u = 0; u < 2; ++u) {
      const SubScales subs = Scales::subs(bits.group<Scales>(u));
      std::int32_t total = 0;
      IMAGO_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        std::int32_t dot = dots[u][half] * (half + 1 < kHalves ? kFirstFactor : 1);
        if constexpr (kSumsAreIntegers) dot -= static_cast<std::int32_t>(x[u][1 + half]);
        total += subs.scale[half] * dot;
        if constexpr (Scales::kHasMin) mins += static_cast<float>(subs.min[half]) * float_of_bits(x[u][1 + half]);
      }
      sum += float_of_bits(x[u][0]) * static_cast<float>(total);
    }
    const SuperScale super = Scales::super(bits.supers);
    result += super.scale * sum;
    if constexpr (Scales::kHasMin) result -= super.min * mins;
    return result;
  }
};

}  // namespace imago::kernels::cuda
