#include "kernels/avx512/tiles.h"
#include "kernels/folders.h"

namespace imago::kernels::avx512 {

namespace {

constexpr int kChains = 4;  // a product takes 52 cycles, and one starts every 16

/// Small numbers of all kinds: products of zeros take less power, and the clock would be higher than it ever is.
struct Numbers {
  alignas(64) std::uint16_t values[4][kTileBytes / 2];
  Numbers() noexcept {
    std::uint32_t random = 1;
    for (auto& tile : values) {
      for (std::uint16_t& value : tile) {
        random = random * 1664525 + 1013904223;
        value = static_cast<std::uint16_t>((random >> 16 & 0x807F) | 0x3C00 | (random >> 8 & 0x180));  // up to ±0.06
      }
    }
  }
};

void tile_chains(std::size_t rounds) noexcept {
  static const Numbers numbers;
  const TileRegisters registers;  // sums begin as zeros
  load_tile<4>(numbers.values[0]);
  load_tile<5>(numbers.values[1]);
  load_tile<6>(numbers.values[2]);
  load_tile<7>(numbers.values[3]);
  for (std::size_t i = 0; i < rounds; ++i) {
    multiply_tiles<0, 4, 6>();
    multiply_tiles<1, 4, 7>();
    multiply_tiles<2, 5, 6>();
    multiply_tiles<3, 5, 7>();
  }
}

}  // namespace

PeakLoops amx_peak_loops() noexcept {
  PeakLoops loops = vnni_peak_loops();
  loops.bfloat16 = {tile_chains, 2.0 * kChains * kTileRows * kTileRows * kTileRowBytes / 2};
  return loops;
}

}  // namespace imago::kernels::avx512
