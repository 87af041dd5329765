#pragma once

// The end of every launch of a streaming matvec.

#include <cuda_runtime.h>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matvec.h"

namespace imago::kernels::cuda {

/// False: there is no room for the plan, and nothing was launched.
inline bool launch_stream(void (*kernel)(MatVecArgs, StreamPlan), const MatVecArgs& args, const StreamPlan& plan,
                          const LaunchFacts& facts, CUstream_st* stream) {
  if (plan.column_warps == 0 || plan.bytes > facts.shared_bytes) return false;
  imago::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(facts.shared_bytes)),
      "shared memory");
  launch_overlapped("a product of one token", kernel, plan.blocks, plan.column_warps * plan.row_warps * 32, plan.bytes,
                    stream, args, plan);
  return true;
}

}  // namespace imago::kernels::cuda
