#pragma once

// Tile registers: eight of 16 rows by 64 bytes, of which one instruction multiplies two. Written as assembly, since the
// compilers' own functions tell them nothing of the memory that a tile is read from: stores to it may be left out.

#include <cstddef>
#include <cstdint>

#include "kernels/avx512/lanes.h"

namespace imago::kernels::avx512 {
namespace {  // each file has its own: they differ in flags

inline constexpr std::size_t kTileRows = 16;
inline constexpr std::size_t kTileRowBytes = 64;
inline constexpr std::size_t kTileBytes = kTileRows * kTileRowBytes;

/// The sizes of tiles, as the instruction that sets them reads it.
struct alignas(64) TileSizes {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileSizes) == 64);

/// Tiles as long as it lives, all of full size, on the thread that made it.
class TileRegisters {
 public:
  TileRegisters() noexcept { asm volatile("ldtilecfg %0" : : "m"(kFullSize)); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
  ~TileRegisters() { asm volatile("tilerelease"); }

 private:
  static constexpr TileSizes kFullSize{};
};

template <int kTile>
inline void zero_tile() noexcept {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
// In memory rows follow each other.
template <int kTile>
inline void load_tile(const void* from) noexcept {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(kTileRowBytes), "i"(kTile) : "memory");
}
/// The same, leaving the first-level cache to others.
template <int kTile>
inline void load_tile_past(const void* from) noexcept {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(kTileRowBytes), "i"(kTile) : "memory");
}
template <int kTile>
inline void store_tile_at(void* to) noexcept {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(kTileRowBytes), "i"(kTile) : "memory");
}
/// sums[m][n] += Σ a[m][k] · b[k][n] over 32 values of bfloat16, with b in pairs: row j has b[2j][n], b[2j + 1][n] for
/// every n.
template <int kSums, int kA, int kB>
inline void multiply_tiles() noexcept {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

/// The nearest bfloat16 of each lane.
inline Floats rounded(Floats v) noexcept {
  const __m256i halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v.v));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}

inline __mmask16 finite_lanes(__m512 v) noexcept {
  return _mm512_cmp_ps_mask(_mm512_sub_ps(v, v), _mm512_setzero_ps(), _CMP_EQ_OQ);
}

/// Numbers as sums of kCount bfloat16 ones, each the nearest of what those before it have left, or the next smaller
/// where that is infinite; the last is left to those who store it to be rounded. Of three the sum is exact, but for
/// what is lost where the last would be smaller than any normal number. What is not finite has a single term.
template <int kCount>
struct Bfloat16Terms {
  Floats terms[kCount];

  explicit Bfloat16Terms(Floats v) noexcept {
    for (int i = 0; i + 1 < kCount; ++i) {
      const __mmask16 is_finite = finite_lanes(v.v);
      const __m512 nearest = rounded(v).v;
      const __m512 upper = _mm512_and_ps(v.v, _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(0xFFFF0000))));
      terms[i] = {_mm512_mask_mov_ps(nearest, _kandn_mask16(finite_lanes(nearest), is_finite), upper)};
      v = {_mm512_maskz_sub_ps(is_finite, v.v, terms[i].v)};
    }
    terms[kCount - 1] = v;
  }
};

/// Two vectors rounded to bfloat16, one after the other.
inline void store_rounded(Floats first, Floats second, std::uint16_t* to) noexcept {
  _mm512_storeu_si512(to, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.v, first.v)));
}

/// Two columns of bfloat16, one after the other, in pairs as multiply_tiles wants b.
inline void store_pairs(__m512i halves, std::byte* to) noexcept {
  const __m512i interleaved =
      _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
                        0x190009, 0x1A000A, 0x1B000B, 0x1C000C, 0x1D000D, 0x1E000E, 0x1F000F);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(interleaved, halves));
}
/// For every lane the pair (even, odd) rounded to bfloat16.
inline void store_pairs(Floats even, Floats odd, std::byte* to) noexcept {
  store_pairs(reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v)), to);
}

}  // namespace
}  // namespace imago::kernels::avx512
