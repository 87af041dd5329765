#pragma once

// Plain arguments of the loops that measure peaks. Included by files with instruction-set flags: no functions here.

#include <cstddef>

namespace imago::kernels {

/// A loop that does nothing but multiply and add in registers, in chains that do not wait for each other.
struct PeakLoop {
  void (*run)(std::size_t rounds) noexcept;  // REQUIRES: rounds > 0
  double operations;                         // of one round, 2 per multiply-add
};

struct PeakLoops {
  PeakLoop float32;
  PeakLoop int8;
  PeakLoop bfloat16 = {nullptr, 0};  // by tiles; null where there are none
};

}  // namespace imago::kernels
