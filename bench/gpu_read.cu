#include "gpu_read.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "device/cuda/check.h"

namespace imago::bench {

namespace {

/// Sums what it reads, so that the compiler cannot drop the loads; the result is never used.
__global__ void __launch_bounds__(256) read_all(const uint4* from, std::size_t count, unsigned* to) {
  unsigned sum = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) v[j] = __ldcs(from + i + j * step);
#pragma unroll
    for (int j = 0; j < 4; ++j) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (sum == 0x12345678u) *to = sum;
}

}  // namespace

double read_bandwidth(const std::shared_ptr<Device>& device) {
  constexpr std::size_t kBytes = std::size_t{2} << 30;
  Buffer memory = device->allocate(kBytes);
  imago::cuda::Stream stream(device);
  double best = 0;
  for (int round = 0; round < 8; ++round) {
    imago::cuda::Event begin, end;
    begin.record(stream);
    read_all<<<132 * 16, 256, 0, stream.handle()>>>(reinterpret_cast<const uint4*>(memory.address()), kBytes / 16,
                                                    reinterpret_cast<unsigned*>(memory.address()));
    imago::cuda::check_launch("read_all");
    end.record(stream);
    best = std::max(best, static_cast<double>(kBytes) / imago::cuda::Event::seconds_between(begin, end));
  }
  return best;
}

}  // namespace imago::bench
