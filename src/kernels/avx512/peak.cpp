// Inline assembly: a compiler given intrinsics spills some of the chains, and reports half of the peak.

#include "kernels/folders.h"

namespace imago::kernels::avx512 {

namespace {

constexpr int kLanes = 16;
constexpr int kChains = 12;  // a multiply-add takes 4 to 5 cycles and two start in each: 10 are needed

/// Products of floats; of bytes in three steps: pairs to 16 bits, pairs of those to 32, and the sum; or four of those
/// and their sum in one instruction.
enum Step { kFloat32, kInt8, kVnni };

template <Step kStep>
void run_chains(std::size_t rounds) noexcept {
  asm volatile(
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14\n\t"
      "vpxord %%zmm\\chain, %%zmm\\chain, %%zmm\\chain\n\t"
      ".endr\n\t"
      ".p2align 6\n"
      "1:\n\t"
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11\n\t"
      ".if %c1\n\t"
      "vfmadd231ps %%zmm12, %%zmm13, %%zmm\\chain\n\t"
      ".elseif %c2\n\t"
      "vpdpbusd %%zmm12, %%zmm13, %%zmm\\chain\n\t"
      ".else\n\t"
      "vpmaddubsw %%zmm12, %%zmm13, %%zmm15\n\t"
      "vpmaddwd %%zmm14, %%zmm15, %%zmm15\n\t"
      "vpaddd %%zmm15, %%zmm\\chain, %%zmm\\chain\n\t"
      ".endif\n\t"
      ".endr\n\t"
      "dec %0\n\t"
      "jnz 1b\n\t"
      "vzeroupper"
      : "+r"(rounds)
      : "i"(kStep == kFloat32), "i"(kStep == kVnni)
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
        "xmm13", "xmm14", "xmm15");
}

constexpr PeakLoop kFloats{run_chains<kFloat32>, 2.0 * kChains* kLanes};

}  // namespace

PeakLoops peak_loops() noexcept { return {kFloats, {run_chains<kInt8>, 2.0 * kChains * kLanes * 4}}; }

PeakLoops vnni_peak_loops() noexcept { return {kFloats, {run_chains<kVnni>, 2.0 * kChains * kLanes * 4}}; }

}  // namespace imago::kernels::avx512
