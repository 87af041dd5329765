#include "backend/cuda/combine.h"
#include "device/cuda/check.h"

namespace imago::backend::cuda {

namespace {

constexpr unsigned kThreads = 256;

__global__ void combine(CombineArgs args) {
  const std::size_t col = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t token = blockIdx.y;
  if (col >= args.width) return;
  float sum = 0;
  for (std::size_t i = token * args.used; i < (token + 1) * args.used; ++i) {
    sum += args.weights[i] * args.results[static_cast<std::size_t>(args.slot_of[i]) * args.width + col];
  }
  args.out[token * args.width + col] = sum;
}

}  // namespace

void combine_experts(const CombineArgs& args, imago::cuda::Stream& stream) {
  if (args.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>((args.width + kThreads - 1) / kThreads), static_cast<unsigned>(args.tokens));
  combine<<<grid, kThreads, 0, stream.handle()>>>(args);
  imago::cuda::check_launch("combine_experts");
}

}  // namespace imago::backend::cuda
