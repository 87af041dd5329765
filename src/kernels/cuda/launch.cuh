#pragma once

// Launches that overlap (programmatic dependent launch): blocks of a kernel are scheduled while the previous kernel of
// the stream still runs, and wait for it on the device. Between the small kernels of a decode step that hides most of
// the cost of a launch, also in graphs.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "device/cuda/check.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Whether 16 bytes can be loaded at once.
inline bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

/// REQUIRES: the kernel calls wait_for_previous. `cluster`: blocks of a cluster, along x; 0: no clusters.
template <class... Parameters, class... Arguments>
void launch_overlapped_cluster(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                               std::size_t shared_bytes, unsigned cluster, CUstream_st* stream,
                               Arguments&&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (imago::cuda::can_overlap()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster != 0) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {cluster, 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  imago::cuda::check(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...), name);
}

template <class... Parameters, class... Arguments>
void launch_overlapped(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                       std::size_t shared_bytes, CUstream_st* stream, Arguments&&... arguments) {
  launch_overlapped_cluster(name, kernel, blocks, threads, shared_bytes, 0, stream,
                            std::forward<Arguments>(arguments)...);
}
template <class... Parameters, class... Arguments>
void launch_overlapped(const char* name, void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                       std::size_t shared_bytes, imago::cuda::Stream& stream, Arguments&&... arguments) {
  launch_overlapped_cluster(name, kernel, blocks, threads, shared_bytes, 0, stream.handle(),
                            std::forward<Arguments>(arguments)...);
}

}  // namespace imago::kernels::cuda
