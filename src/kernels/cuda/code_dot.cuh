#pragma once

// Products of packed codes and int8 activations, two groups at a time, with as few instructions as there are: codes are
// not moved to the low end of their bytes where a factor can be taken back at the end, and the sums are for tensor
// cores.
//
// Sums collects products of words; the kernel's is a tile of tensor cores, the tests' spells it out. It has
//   add<kSigned>(first, second, x, i)   + Σ first · x[2i] + Σ second · x[2i + 1], of four bytes each. `first` and
//   `second`
//                                       are words of codes, one of each group, signed or not.
//   times_plus(factor, others)          · factor + others
// CodeDot<Codes> has
//   place    where word i of the activations, in the order of Codes::words, is in x; kInOrder: there
//   dots     Σ code · x of the groups, or of their two halves, times `factor`
//   kIsSlow  where that takes more instructions than memory leaves time for

#include <cstdint>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// Words of two groups.
struct WordPair {
  std::uint32_t group[2];
};

/// Main codes and further bits of two groups, as they lie in memory.
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

/// Codes taken apart, of two groups: four bytes a word, in the order of the activations.
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

/// Any codes, taken apart into bytes.
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

/// Bits k and k + 4 of a word of codes go together.
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

/// Upper four bits in the upper half of bytes, and the others below them.
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

/// Nibbles pick bytes of eight by themselves, those below 8 a level of the first half, and their complements one of the
/// second, whose order is reversed. What is not meant picks the sign of a byte: 0, or -1 where it is negative, which
/// the level on the other side makes up for.
template <class Levels>
struct CodeDot<CodesTable<Levels>> {
  static constexpr int sign(int i) noexcept { return Levels::kLevels[i] < 0 ? -1 : 0; }
  static constexpr int lower(int i) noexcept { return Levels::kLevels[i] - sign(i + 8); }
  static constexpr int upper(int i) noexcept { return Levels::kLevels[15 - i] - sign(7 - i); }

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

}  // namespace imago::kernels::cuda
