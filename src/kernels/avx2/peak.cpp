// Inline assembly: a compiler given intrinsics spills some of the chains, and reports half of the peak.

#include "kernels/folders.h"

namespace imago::kernels::avx2 {

namespace {

constexpr int kLanes = 8;
constexpr int kChains = 12;  // a multiply-add takes 4 to 5 cycles and two start in each: 10 are needed

/// Products of floats or, in three steps, of bytes: pairs to 16 bits, pairs of those to 32, and the sum.
enum Step { kFloat32, kInt8 };

template <Step kStep>
void run_chains(std::size_t rounds) noexcept {
  asm volatile(
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"
      "vxorps %%ymm\\chain, %%ymm\\chain, %%ymm\\chain\n\t"
      ".endr\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      ".if %c1\n\t"
      "vpmaddubsw %%ymm12, %%ymm13, %%ymm15\n\t"
      "vpmaddwd %%ymm14, %%ymm15, %%ymm15\n\t"
      "vpaddd %%ymm15, %%ymm\\chain, %%ymm\\chain\n\t"
      ".else\n\t"
      "vfmadd231ps %%ymm12, %%ymm13, %%ymm\\chain\n\t"
      ".endif\n\t"
      ".endr\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(rounds)
      : "i"(kStep == kInt8)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

}  // namespace

PeakLoops peak_loops() noexcept {
  return {{run_chains<kFloat32>, 2.0 * kChains * kLanes}, {run_chains<kInt8>, 2.0 * kChains * kLanes * 4}};
}

}  // namespace imago::kernels::avx2
