#pragma once

// The arithmetic of tiles: products of packed codes with quantized activations, two groups at a time, and the scales
// that turn them into results. Both parts save instructions.
//
// CodeDot does not shift codes to the low end of their bytes where a factor can be undone at the end. It has
//   place    where word i of the activations, in the order of Codes::words, is in x; kInOrder: at i
//   dots     Σ code · x of the groups, or of their two halves, times `factor`
//   kIsSlow  whether that takes more instructions than memory leaves time for
// Its template argument Sums collects products of words: on the GPU a tensor core tile (TileSums), in tests plain code:
//   add<kSigned>(first, second, x, i)  adds Σ first · x[2i] + Σ second · x[2i + 1] over four bytes each; `first` and
//                                      `second` are words of codes of two groups, signed or not
//   times_plus(factor, others)         multiplies with `factor`, then adds `others`
//
// ScaledSums applies the scales of two neighbouring groups. Powers of two are multiplied into the activations
// beforehand, and small integer scales multiply the sums while these are integers.

#include <cstdint>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/host_device.h"
#include "kernels/cuda/scales.cuh"

namespace imago::kernels::cuda {

// ---- products of codes

/// A word of codes from each of two groups.
struct WordPair {
  std::uint32_t group[2];
};

/// Main codes and high bits of two groups, as stored.
template <class Codes>
struct CodePair {
  std::uint32_t codes[2][Codes::kBytes / 4];
  std::uint32_t high[2][Codes::kHighBytes / 4 + 1];

  IMAGO_HD WordPair masked(int word, std::uint32_t mask) const noexcept {
    return {{codes[0][word] & mask, codes[1][word] & mask}};
  }
  IMAGO_HD WordPair shifted(int word, int shift, std::uint32_t mask) const noexcept {
    return {{codes[0][word] >> shift & mask, codes[1][word] >> shift & mask}};
  }
};

/// Decoded codes of two groups: four bytes a word, in the order of the activations.
template <class Codes>
struct CodeWords {
  std::uint32_t words[2][8];

  IMAGO_HD CodeWords() noexcept {}
  IMAGO_HD explicit CodeWords(const CodePair<Codes>& pair) noexcept {
    IMAGO_UNROLL
    for (int g = 0; g < 2; ++g) Codes::words(pair.codes[g], pair.high[g], words[g]);
  }
  template <int kParts, class Sums, class X>
  IMAGO_HD void dots(const X& x, Sums (&out)[kParts]) const noexcept {
    Sums halves[2] = {};
    IMAGO_UNROLL
    for (int i = 0; i < 4; ++i) {
      const WordPair first{{words[0][2 * i], words[1][2 * i]}}, second{{words[0][2 * i + 1], words[1][2 * i + 1]}};
      halves[i / 2].template add<Codes::kSigned>(first, second, x, i);
    }
    if constexpr (kParts == 1) halves[0].times_plus(1, halves[1]);
    out[0] = halves[0];
    if constexpr (kParts == 2) out[1] = halves[1];
  }
};

/// Any codes: decodes them to bytes first.
template <class Codes>
struct CodeDot {
  static constexpr float factor(int, int) noexcept { return 1; }
  static constexpr bool kInOrder = true, kIsSlow = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    CodeWords<Codes>(pair).dots(x, out);
  }
};

/// Bits k and k + 4 of a word are multiplied together.
template <>
struct CodeDot<Codes1> {
  static constexpr float factor(int, int) noexcept { return 8; }
  static constexpr bool kInOrder = false, kIsSlow = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word % 4 * 2 + word / 4; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes1>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    static_assert(kParts == 1);
    const auto add = [&](Sums& sums, int k) {
      const std::uint32_t mask = 0x01010101u << k;
      sums.template add<false>(pair.masked(0, mask), pair.shifted(0, 4, mask), x, k);
    };
    Sums low{}, high{};
    add(low, 0);
    low.times_plus(2, Sums{});
    add(low, 1);
    add(high, 2);
    high.times_plus(2, Sums{});
    add(high, 3);
    low.times_plus(4, high);
    out[0] = low;
  }
};

template <>
struct CodeDot<Codes2> {
  static constexpr float factor(int part, int parts) noexcept { return parts == 2 && part == 0 ? 4 : 64; }
  static constexpr bool kInOrder = true, kIsSlow = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes2>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    const auto add = [&](Sums& sums, int k) {
      const std::uint32_t mask = 0x03030303u << 2 * k;
      sums.template add<false>(pair.masked(0, mask), pair.masked(1, mask), x, k);
    };
    Sums halves[2] = {};
    IMAGO_UNROLL
    for (int half = 0; half < 2; ++half) {
      add(halves[half], 2 * half);
      halves[half].times_plus(4, Sums{});
      add(halves[half], 2 * half + 1);
    }
    if constexpr (kParts == 1) halves[0].times_plus(16, halves[1]);
    out[0] = halves[0];
    if constexpr (kParts == 2) out[1] = halves[1];
  }
};

template <>
struct CodeDot<Codes4> {
  static constexpr float factor(int, int) noexcept { return 16; }
  static constexpr bool kInOrder = false, kIsSlow = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word % 2 * 4 + word / 2; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes4>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    static_assert(kParts == 1);
    Sums low{}, high{};
    IMAGO_UNROLL
    for (int i = 0; i < 2; ++i) {
      low.template add<false>(pair.masked(2 * i, 0x0F0F0F0Fu), pair.masked(2 * i + 1, 0x0F0F0F0Fu), x, i);
      high.template add<false>(pair.masked(2 * i, 0xF0F0F0F0u), pair.masked(2 * i + 1, 0xF0F0F0F0u), x, 2 + i);
    }
    low.times_plus(16, high);
    out[0] = low;
  }
};

/// Codes of 5 and 6 bits: the upper four bits in the upper half of a byte, the others below them.
template <class Codes>
struct CodeDotOfTwoPlanes {
  static constexpr float factor(int, int) noexcept { return 1 << (8 - Codes::kBits); }
  static constexpr bool kInOrder = true, kIsSlow = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    IMAGO_UNROLL
    for (int part = 0; part < kParts; ++part) out[part] = {};
    IMAGO_UNROLL
    for (int w = 0; w < 4; ++w) {
      WordPair words[2];
      IMAGO_UNROLL
      for (int g = 0; g < 2; ++g) {
        const std::uint32_t upper[2] = {pair.codes[g][w] << 4, pair.codes[g][w]};
        IMAGO_UNROLL
        for (int i = 0; i < 2; ++i) {
          words[i].group[g] = merge_bits(upper[i], Codes::lowest(pair.high[g], 2 * w + i), 0xF0F0F0F0u);
        }
      }
      out[w * kParts / 4].template add<false>(words[0], words[1], x, w);
    }
  }
};
template <>
struct CodeDot<Codes5> : CodeDotOfTwoPlanes<Codes5> {};
template <>
struct CodeDot<Codes6> : CodeDotOfTwoPlanes<Codes6> {};

/// Levels: a nibble below 8 selects a byte of the first half of the table, and its complement one of the second half,
/// which is stored in reverse. A selector above 7 yields the sign of a byte, 0 or -1; the levels of the other half are
/// corrected for that.
template <class Levels>
struct CodeDot<CodesTable<Levels>> {
  static constexpr int sign(int i) noexcept { return Levels::kTable[i] < 0 ? -1 : 0; }
  static constexpr int lower(int i) noexcept { return Levels::kTable[i] - sign(i + 8); }
  static constexpr int upper(int i) noexcept { return Levels::kTable[15 - i] - sign(7 - i); }

  static constexpr float factor(int, int) noexcept { return 1; }
  static constexpr bool kInOrder = true, kIsSlow = true;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<CodesTable<Levels>>& pair, const X& x, Sums (&out)[kParts]) noexcept {
    constexpr std::uint32_t kLow[2] = {level_word(lower(0), lower(1), lower(2), lower(3)),
                                       level_word(lower(4), lower(5), lower(6), lower(7))};
    constexpr std::uint32_t kUp[2] = {level_word(upper(0), upper(1), upper(2), upper(3)),
                                      level_word(upper(4), upper(5), upper(6), upper(7))};
    IMAGO_UNROLL
    for (int part = 0; part < kParts; ++part) {
      Sums low_sums{}, up_sums{};
      IMAGO_UNROLL
      for (int w = part * 4 / kParts; w < (part + 1) * 4 / kParts; ++w) {
        WordPair low[2], up[2];
        IMAGO_UNROLL
        for (int g = 0; g < 2; ++g) {
          const std::uint32_t codes = pair.codes[g][w];
          low[0].group[g] = pick_bytes(kLow[0], kLow[1], codes);
          low[1].group[g] = pick_bytes(kLow[0], kLow[1], upper_half(codes));
          up[0].group[g] = pick_bytes(kUp[0], kUp[1], ~codes);
          up[1].group[g] = pick_bytes(kUp[0], kUp[1], upper_half_complement(codes));
        }
        low_sums.template add<true>(low[0], low[1], x, w);
        up_sums.template add<true>(up[0], up[1], x, w);
      }
      low_sums.times_plus(1, up_sums);
      out[part] = low_sums;
    }
  }
};

// ---- scales

/// Scales of two groups as stored: both in words[0], or one word each if a scale has four bytes; the words that
/// Scales::super takes; `rows`: scales of dtypes.
struct PairBits {
  std::uint32_t words[2] = {}, supers[4] = {};
  float rows[2] = {1, 1};

  template <class Scales>
  IMAGO_HD std::uint32_t group(int u) const noexcept {
    return Scales::kBytes == 4 ? words[u] : words[0] >> 8 * Scales::kBytes * u;
  }
};

/// Scales of two groups as floats, divided by kUnit.
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

/// An exponent shifted to its place in a float is a power of two, except 0, which means 2^-127: half of the next one.
/// 255, a NaN in the standard, becomes infinite.
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

/// E4M3 shifted to its place in binary16 is 2^-8 of the number, also for subnormal ones.
template <>
struct PairScales<ScaleSmallFloat> {
  static constexpr float kUnit = 128;  // levels are doubled
  float scale[2][2];

  IMAGO_HD explicit PairScales(const PairBits& bits) noexcept {
    floats_of_halves((bits.words[0] & 0x007F007Fu) << 7, scale[0][0], scale[1][0]);
    floats_of_halves(bits.words[0] >> 1 & 0x3F803F80u, scale[0][1], scale[1][1]);
  }
};

/// Turns integer sums of two groups into a float result. Says what has to be stored with the activations for that.
template <class Form>
struct ScaledSums {
  using Scales = typename Form::Scales;
  using Dot = CodeDot<typename Form::Codes>;
  static constexpr int kHalves = Scales::kParts;  ///< of a group, if they have scales of their own
  static constexpr bool kHasZero = Form::kZeroOfFormat != 0.0f || (Scales::kRow && !kAreLevels<typename Form::Codes>);
  static constexpr bool kHasSum = Scales::kHasMin || kHasZero;
  /// Words stored with a group of activations: their scale, then for each half the sum of its codes if needed, times
  /// the scale and the zero point, or as an integer (sum_bits).
  static constexpr int kXWords = !kHasSum ? 1 : kHalves == 1 ? 2 : 4;
  static constexpr bool kSumsAreIntegers = kHasSum && Scales::kSubs && !Scales::kHasMin;
  static_assert(!kSumsAreIntegers || kHalves == 2);

  /// The factor of the sums of both halves (CodeDot::factor).
  static constexpr int kFactor = static_cast<int>(Dot::factor(kHalves - 1, kHalves));
  static constexpr int kFirstFactor = kFactor / static_cast<int>(Dot::factor(0, kHalves));
  static constexpr float unit() noexcept {
    if constexpr (Scales::kSubs) {
      return Form::kStep / kFactor * Scales::kUnit;
    } else {
      return Form::kStep / kFactor * PairScales<Scales>::kUnit;
    }
  }

  /// The word for codes that add up to `sum`, and to `scaled` with their scale. `zero`: of the layout.
  IMAGO_HD static std::uint32_t sum_bits(float scaled, std::int32_t sum, float zero) noexcept {
    if constexpr (kSumsAreIntegers) {
      return static_cast<std::uint32_t>(sum * static_cast<std::int32_t>(Form::kZeroOfFormat) * kFactor);
    } else {
      return bits_of_float(Scales::kHasMin ? scaled * Scales::kUnit : scaled * zero);
    }
  }

  /// Returns result + the sums of two groups, given by halves, with their scales and those of the activations `x`.
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
