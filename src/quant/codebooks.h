#pragma once

// The codebooks of the iq1, iq2 and iq3 formats: an entry gives the levels of eight weights, or of four, at once.
// Plain data: files with instruction-set flags include it.

#include <cstdint>

namespace imago::quant {

/// `levels` has a byte per weight, the first one lowest: the magnitudes of iq2 and iq3; 128 + 8 · (-1, 0, 1) of iq1.
/// `low` and `high` are the numbers of the two halves of an entry among all halves, for searching.
template <int kCount, class Word>
struct Codebook {
  static constexpr int kEntries = kCount;
  static constexpr int kWeights = sizeof(Word);
  Word levels[kCount];
  std::uint8_t low[kCount], high[kCount];
};

extern const Codebook<2048, std::uint64_t> kIq1Book;
extern const Codebook<256, std::uint64_t> kIq2XxsBook;
extern const Codebook<512, std::uint64_t> kIq2XsBook;
extern const Codebook<1024, std::uint64_t> kIq2SBook;
extern const Codebook<256, std::uint32_t> kIq3XxsBook;
extern const Codebook<512, std::uint32_t> kIq3SBook;

}  // namespace imago::quant
