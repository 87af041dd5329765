#pragma once

// Codes of 8 bits and fewer, 32 weights at a time, from the planes to eight words of four bytes: byte j of word i is
// the code of weight 4i + j, as int8 activations lie. Bits are ordered in the planes such that a shift and a mask give
// four of them.
//
// A layout has
//   kBytes, kHighBytes  bytes of a group in Planes::codes and Planes::high
//   kBits               codes are below 2^kBits, or signed bytes if kSigned
//   words               codes[kBytes / 4], high[kHighBytes / 4] -> words[8], and one of them: see WordByWord

#include <cstdint>

#include "kernels/cuda/host_device.h"

namespace imago::kernels::cuda {

/// Decodes all words of a group, given how a layout `Own` decodes one of them:
///   code_of, high_of  which words of the codes and of the high bits word i takes
///   word              these two words, i -> word i
template <class Own>
struct WordByWord {
  IMAGO_HD static void words(const std::uint32_t* codes, const std::uint32_t* high, std::uint32_t* out) noexcept {
    IMAGO_UNROLL
    for (int i = 0; i < 8; ++i) {
      out[i] = Own::word(codes[Own::code_of(i)], Own::kHighBytes > 0 ? high[Own::high_of(i)] : 0, i);
    }
  }
  IMAGO_HD static constexpr int high_of(int) noexcept { return 0; }
};

/// Bit k of byte j is weight 4k + j.
struct Codes1 : WordByWord<Codes1> {
  static constexpr int kBytes = 4, kHighBytes = 0, kBits = 1;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int) noexcept { return 0; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t, int i) noexcept {
    return code >> i & 0x01010101u;
  }
};

/// Bits 2k, 2k + 1 of byte j of word w: weight 8k + 4w + j. What belongs together, also in halves of a group, has the
/// same place in both words.
struct Codes2 : WordByWord<Codes2> {
  static constexpr int kBytes = 8, kHighBytes = 0, kBits = 2;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i % 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t, int i) noexcept {
    return code >> 2 * (i / 2) & 0x03030303u;
  }
};

/// Two bits as above, and in `high` the third as in Codes1.
struct Codes3 : WordByWord<Codes3> {
  static constexpr int kBytes = 8, kHighBytes = 4, kBits = 3;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i % 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t high, int i) noexcept {
    const std::uint32_t third = (i < 2 ? high << (2 - i) : high >> (i < 2 ? 0 : i - 2)) & 0x04040404u;
    return (code >> 2 * (i / 2) & 0x03030303u) | third;
  }
};

/// Byte j of word w: weight 8w + j in the low half, 8w + 4 + j in the high half.
struct Codes4 : WordByWord<Codes4> {
  static constexpr int kBytes = 16, kHighBytes = 0, kBits = 4;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i / 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t, int i) noexcept {
    return code >> 4 * (i % 2) & 0x0F0F0F0Fu;
  }
};

/// The upper four bits as above, and in `high` the lowest as in Codes1.
struct Codes5 : WordByWord<Codes5> {
  static constexpr int kBytes = 16, kHighBytes = 4, kBits = 5;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i / 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t high, int i) noexcept {
    const std::uint32_t upper = (i % 2 == 0 ? code << 1 : code >> 3) & 0x1E1E1E1Eu;
    return upper | (high >> i & 0x01010101u);
  }
  /// The lowest bits of word i as bit 3 of the lower halves of bytes; the upper halves do not count.
  IMAGO_HD static std::uint32_t lowest(const std::uint32_t* high, int i) noexcept {
    const std::uint32_t both = mask_once(high[0] << (3 - i % 4), 0x88888888u);  // of words i % 4 and i % 4 + 4
    return i < 4 ? both : both >> 4;
  }
};

/// The upper four bits as above, and in `high` the others as in Codes2.
struct Codes6 : WordByWord<Codes6> {
  static constexpr int kBytes = 16, kHighBytes = 8, kBits = 6;
  static constexpr bool kSigned = false;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i / 2; }
  IMAGO_HD static constexpr int high_of(int i) noexcept { return i % 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t high, int i) noexcept {
    const std::uint32_t upper = (i % 2 == 0 ? code << 2 : code >> 2) & 0x3C3C3C3Cu;
    return upper | (high >> 2 * (i / 2) & 0x03030303u);
  }
  /// The lowest two bits of word i as bits 2 and 3 of the lower halves of bytes; the upper halves do not count.
  IMAGO_HD static std::uint32_t lowest(const std::uint32_t* high, int i) noexcept {
    const std::uint32_t both =
        mask_once(i % 4 < 2 ? high[i % 2] << 2 : high[i % 2], 0xCCCCCCCCu);  // words i % 4, i % 4 + 4
    return i < 4 ? both : both >> 4;
  }
};

/// Signed bytes in the order of the weights.
struct Codes8 : WordByWord<Codes8> {
  static constexpr int kBytes = 32, kHighBytes = 0, kBits = 8;
  static constexpr bool kSigned = true;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t, int) noexcept { return code; }
};

/// Four signed bytes as a word, the first one lowest.
constexpr std::uint32_t level_word(int a, int b, int c, int d) noexcept {
  return (static_cast<std::uint32_t>(a) & 0xFFu) | (static_cast<std::uint32_t>(b) & 0xFFu) << 8 |
         (static_cast<std::uint32_t>(c) & 0xFFu) << 16 | (static_cast<std::uint32_t>(d) & 0xFFu) << 24;
}

/// The table of a set of levels (quant/search.inl.h) in the words that CodesTable reads.
template <class Levels>
struct LevelWords {
  static constexpr std::uint32_t word(int i) noexcept {
    return level_word(Levels::kTable[i], Levels::kTable[i + 1], Levels::kTable[i + 2], Levels::kTable[i + 3]);
  }
  static constexpr std::uint32_t kWords[4] = {word(0), word(4), word(8), word(12)};
};

/// Sixteen levels in signed bytes; nibble k of word w is the level of weight 8w + k. A nibble less its top bit picks a
/// byte of each half of the table, the top bit picks between the two.
template <class Levels>
struct CodesTable : WordByWord<CodesTable<Levels>> {
  using Words = LevelWords<Levels>;
  static constexpr int kBytes = 16, kHighBytes = 0, kBits = 8;
  static constexpr bool kSigned = true;
  IMAGO_HD static std::uint32_t four(std::uint32_t index, std::uint32_t half) noexcept {
    const std::uint32_t low = pick_bytes(Words::kWords[0], Words::kWords[1], index);
    const std::uint32_t high = pick_bytes(Words::kWords[2], Words::kWords[3], index);
    return pick_bytes(low, high, half);
  }
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i / 2; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t, int i) noexcept {
    const std::uint32_t index = code & 0x77777777u;
    const std::uint32_t half = (code >> 1 & 0x44444444u) | 0x32103210u;
    return four(index >> 16 * (i % 2), half >> 16 * (i % 2));
  }
};

/// Eight levels in signed bytes, by three bits: 2k, 2k + 1 of nibble j of word w, with bit k + 2w of nibble j of `high`
/// above them, are the number of the level of weight 16w + 8k + j.
template <class Levels>
struct CodesOfEight : WordByWord<CodesOfEight<Levels>> {
  using Words = LevelWords<Levels>;
  static constexpr int kBytes = 8, kHighBytes = 4, kBits = 8;
  static constexpr bool kSigned = true;
  IMAGO_HD static constexpr int code_of(int i) noexcept { return i / 4; }
  IMAGO_HD static std::uint32_t word(std::uint32_t code, std::uint32_t high, int i) noexcept {
    constexpr std::uint32_t kFirst = Words::kWords[0], kLast = Words::kWords[1];
    const int pair = i / 2;
    const std::uint32_t third = (pair < 3 ? high << (pair < 3 ? 2 - pair : 0) : high >> 1) & 0x44444444u;
    const std::uint32_t numbers = (code >> 2 * (pair % 2) & 0x33333333u) | third;
    return pick_bytes(kFirst, kLast, numbers >> 16 * (i % 2));
  }
};

/// Codes that are numbers of sixteen levels: no zero point is subtracted from them.
template <class Codes>
inline constexpr bool kAreLevels = false;
template <class Levels>
inline constexpr bool kAreLevels<CodesTable<Levels>> = true;

}  // namespace imago::kernels::cuda
