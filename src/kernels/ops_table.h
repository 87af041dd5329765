#pragma once

// The table of kernels behind kernels/ops.h and kernels/attention.h.

#include <algorithm>
#include <cassert>
#include <span>
#include <string>

#include "base/cpu.h"
#include "kernels/ops_args.h"

namespace imago::kernels {

/// One way to run the operation that Args stands for (ops_args.h). Rows may differ in the last bits; those of
/// QuantizeArgs do not.
template <class Args>
struct OpKernel {
  std::string name;  ///< "rms_norm/avx512"
  CpuFeatures needs;
  void (*run)(const Args&) noexcept;
};

/// All rows of an operation, best first, `ref` last.
template <class Args>
std::span<const OpKernel<Args>> all_ops();

/// The first row whose needs are within `features`.
template <class Args>
const OpKernel<Args>& choose_op(CpuFeatures features) {
  const std::span<const OpKernel<Args>> rows = all_ops<Args>();
  const auto chosen =
      std::ranges::find_if(rows, [&](const OpKernel<Args>& row) { return within(row.needs, features); });
  assert(chosen != rows.end());  // every operation has a ref row
  return *chosen;
}

}  // namespace imago::kernels
