// Inline assembly: a compiler given intrinsics spills some of the chains, and reports half of the peak.

#include "kernels/folders.h"

namespace imago::kernels::neon {

namespace {

constexpr int kLanes = 4;
constexpr int kChains = 24;  // a multiply-add takes 4 cycles and up to four start in each: 16 are needed

/// Products of floats, or four products of bytes and their sum in one instruction.
enum Step { kFloat32, kInt8 };

template <Step kStep>
void run_chains(std::size_t rounds) noexcept {
  asm volatile(
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25\n\t"
      "movi v\\chain\\().4s, #0\n\t"
      ".endr\n\t"
      ".p2align 5\n"
      "1:\n\t"
      ".irp chain, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n\t"
      ".if %c1\n\t"
      "sdot v\\chain\\().4s, v24.16b, v25.16b\n\t"
      ".else\n\t"
      "fmla v\\chain\\().4s, v24.4s, v25.4s\n\t"
      ".endif\n\t"
      ".endr\n\t"
      "subs %0, %0, #1\n\t"
      "b.ne 1b"
      : "+r"(rounds)
      : "i"(kStep == kInt8)
      : "cc", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
        "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25");
}

}  // namespace

PeakLoops peak_loops() noexcept {
  return {{run_chains<kFloat32>, 2.0 * kChains * kLanes}, {run_chains<kInt8>, 2.0 * kChains * kLanes * 4}};
}

}  // namespace imago::kernels::neon
