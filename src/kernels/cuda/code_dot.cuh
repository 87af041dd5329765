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
//   Tables   what `dots` looks up; made with a zero of which the compiler does not know, or else it would put them into
//            registers time and again
//   place    where word i of the activations, in the order of Codes::words, is in x; kInOrder: there
//   dots     Σ code · x of the groups, or of their two halves, times `factor`

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

struct NoTables {
  IMAGO_HD explicit NoTables(std::uint32_t) noexcept {}
};

/// Any codes, taken apart into bytes.
template <class Codes>
struct CodeDot {
  using Tables = NoTables;
  static constexpr float factor(int, int) noexcept { return 1; }
  static constexpr bool kInOrder = true;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes>& pair, const X& x, const Tables&, Sums (&out)[kParts]) noexcept {
    std::uint32_t words[2][8];
    IMAGO_UNROLL
    for (int g = 0; g < 2; ++g) Codes::words(pair.codes[g], pair.high[g], words[g]);
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

/// Bits k and k + 4 of a word of codes go together.
template <>
struct CodeDot<Codes1> {
  using Tables = NoTables;
  static constexpr float factor(int, int) noexcept { return 8; }
  static constexpr bool kInOrder = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word % 4 * 2 + word / 4; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes1>& pair, const X& x, const Tables&, Sums (&out)[kParts]) noexcept {
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
  using Tables = NoTables;
  static constexpr float factor(int part, int parts) noexcept { return parts == 2 && part == 0 ? 4 : 64; }
  static constexpr bool kInOrder = true;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes2>& pair, const X& x, const Tables&, Sums (&out)[kParts]) noexcept {
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
  using Tables = NoTables;
  static constexpr float factor(int, int) noexcept { return 16; }
  static constexpr bool kInOrder = false;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word % 2 * 4 + word / 2; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<Codes4>& pair, const X& x, const Tables&, Sums (&out)[kParts]) noexcept {
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

/// Nibbles pick bytes of eight by themselves. Those with the top bit pick the sign of a byte, which is 0 in tables of
/// magnitudes, so the levels of each sign are added up apart.
template <class Levels>
struct CodeDot<CodesTable<Levels>> {
  struct Tables {
    std::uint32_t low[2], up[2];
    IMAGO_HD explicit Tables(std::uint32_t zero) noexcept
        : low{magnitudes(0) + zero, magnitudes(4) + zero}, up{magnitudes(8) + zero, magnitudes(12) + zero} {}
  };
  static constexpr float factor(int, int) noexcept { return 1; }
  static constexpr bool kInOrder = true;
  IMAGO_HD static std::uint32_t place(std::uint32_t word) noexcept { return word; }
  template <int kParts, class Sums, class X>
  IMAGO_HD static void dots(const CodePair<CodesTable<Levels>>& pair, const X& x, const Tables& tables,
                            Sums (&out)[kParts]) noexcept {
    IMAGO_UNROLL
    for (int part = 0; part < kParts; ++part) {
      Sums lower{}, upper{};  // of nibbles below 8, and of the others
      IMAGO_UNROLL
      for (int w = part * 4 / kParts; w < (part + 1) * 4 / kParts; ++w) {
        WordPair low[2], up[2];
        IMAGO_UNROLL
        for (int g = 0; g < 2; ++g) {
          const std::uint32_t codes[2] = {pair.codes[g][w], upper_half(pair.codes[g][w])};
          IMAGO_UNROLL
          for (int half = 0; half < 2; ++half) {
            low[half].group[g] = pick_bytes(tables.low[0], tables.low[1], codes[half]);
            up[half].group[g] = pick_bytes(tables.up[0], tables.up[1], codes[half] ^ 0x88888888u);
          }
        }
        lower.template add<false>(low[0], low[1], x, w);
        upper.template add<false>(up[0], up[1], x, w);
      }
      Sums& minus = kLowerIsNegative ? lower : upper;
      minus.times_plus(-1, kLowerIsNegative ? upper : lower);
      out[part] = minus;
    }
  }

 private:
  static constexpr bool kLowerIsNegative = Levels::kLevels[1] < 0;
  static constexpr std::uint32_t magnitudes(int first) noexcept {
    const auto at = [&](int i) {
      return Levels::kLevels[first + i] < 0 ? -Levels::kLevels[first + i] : Levels::kLevels[first + i];
    };
    return level_word(at(0), at(1), at(2), at(3));
  }
};

}  // namespace imago::kernels::cuda
