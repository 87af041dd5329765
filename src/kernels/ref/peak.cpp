// What the compiler makes of plain C++, on processors without faster kernels.

#include "kernels/folders.h"

#include <cstdint>

namespace imago::kernels::ref {

namespace {

constexpr int kChains = 32;

/// sum = sum · factor + term in every chain. The compiler must not know the numbers, and must not drop the result.
template <class Number>
void run_chains(std::size_t rounds) noexcept {
  volatile Number unknown = 1;
  const Number factor = unknown;
  const Number term = unknown;
  Number sums[kChains] = {};
  for (std::size_t round = 0; round < rounds; ++round) {
    for (Number& sum : sums) sum = sum * factor + term;
  }
  for (const Number sum : sums) unknown = sum;
}

}  // namespace

PeakLoops peak_loops() noexcept {
  // int8 codes are multiplied as the integers they are promoted to; unsigned, so that the sums may wrap.
  return {{run_chains<float>, 2.0 * kChains}, {run_chains<std::uint32_t>, 2.0 * kChains}};
}

}  // namespace imago::kernels::ref
