#include "backend/cuda/experts.h"

#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/scalar_ops.h"

namespace imago::backend::cuda {

namespace {

using kernels::cuda::sigmoid_of;

constexpr unsigned kThreads = 256;

struct ChooseWork {
  ChooseArgs args;
  unsigned count, used, groups, groups_used;
  bool sigmoid, two_judge_group, normalize;
  float scale;
};

__device__ float warp_largest(float value) {
  for (unsigned step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

__device__ float warp_total(float value) {
  for (unsigned step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

/// The place of the largest entry, the first of equals; NaN is never the largest. All lanes of the warp get it.
__device__ unsigned best_of(const float* entries, unsigned count) {
  float best = -INFINITY;
  unsigned place = ~0u;
  for (unsigned i = threadIdx.x; i < count; i += 32) {
    if (entries[i] > best || (place == ~0u && entries[i] == best)) best = entries[i], place = i;
  }
  for (unsigned step = 16; step > 0; step /= 2) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const unsigned other_place = __shfl_xor_sync(~0u, place, step);
    if (other > best || (other == best && other_place < place)) best = other, place = other_place;
  }
  return place == ~0u ? 0 : place;  // nothing but NaN
}

/// A warp for each token. Shared memory: scores and ranks of all experts, then those of the groups and which are kept.
__global__ void choose(ChooseWork work) {
  extern __shared__ float memory[];
  float* const scores = memory;
  float* const rank = scores + work.count;
  float* const groups = rank + work.count;
  float* const kept = groups + work.groups;
  const unsigned lane = threadIdx.x;
  const std::size_t token = blockIdx.x;
  const float* const products = work.args.products + token * work.count;

  if (work.sigmoid) {
    for (unsigned e = lane; e < work.count; e += 32) scores[e] = sigmoid_of(products[e]);
  } else {
    float largest = -INFINITY, sum = 0;
    for (unsigned e = lane; e < work.count; e += 32) largest = fmaxf(largest, products[e]);
    largest = warp_largest(largest);
    for (unsigned e = lane; e < work.count; e += 32) sum += scores[e] = expf(products[e] - largest);
    sum = warp_total(sum);
    for (unsigned e = lane; e < work.count; e += 32) scores[e] /= sum;
  }
  for (unsigned e = lane; e < work.count; e += 32) {
    rank[e] = scores[e] + (work.args.choice_bias == nullptr ? 0.0f : work.args.choice_bias[e]);
  }
  __syncwarp();

  if (work.groups_used < work.groups) {
    const unsigned size = work.count / work.groups;
    for (unsigned g = lane; g < work.groups; g += 32) {
      float first = -INFINITY, second = -INFINITY;
      for (unsigned e = g * size; e < (g + 1) * size; ++e) {
        if (rank[e] > first) {
          second = first;
          first = rank[e];
        } else if (rank[e] > second) {
          second = rank[e];
        }
      }
      groups[g] = work.two_judge_group ? first + second : first;
      kept[g] = 0;
    }
    __syncwarp();
    for (unsigned i = 0; i < work.groups_used; ++i) {
      const unsigned best = best_of(groups, work.groups);
      __syncwarp();
      if (lane == 0) groups[best] = -INFINITY, kept[best] = 1;
      __syncwarp();
    }
    for (unsigned e = lane; e < work.count; e += 32) {
      if (kept[e / size] == 0) rank[e] = -INFINITY;
    }
    __syncwarp();
  }

  std::int32_t* const chosen = work.args.chosen + token * work.used;
  float* const weights = work.args.weights + token * work.used;
  float sum = 0;
  for (unsigned i = 0; i < work.used; ++i) {
    const unsigned best = best_of(rank, work.count);
    __syncwarp();
    if (lane == 0) {
      chosen[i] = static_cast<std::int32_t>(best);
      weights[i] = scores[best];
      rank[best] = -INFINITY;
    }
    sum += scores[best];
    __syncwarp();
  }
  const float factor = work.normalize && sum > 0 ? work.scale / sum : work.scale;
  for (unsigned i = lane; i < work.used; i += 32) weights[i] *= factor;
}

__global__ void combine(CombineArgs args) {
  const std::size_t col = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::size_t token = blockIdx.y;
  if (col >= args.width) return;
  float sum = 0;
  for (std::size_t i = token * args.used; i < (token + 1) * args.used; ++i) {
    const std::size_t row = args.row_of == nullptr ? i : static_cast<std::size_t>(args.row_of[i]);
    sum += args.weights[i] * args.results[row * args.width + col];
  }
  if (args.shared != nullptr) {
    const float factor = args.shared_products == nullptr ? 1.0f : sigmoid_of(args.shared_products[token]);
    sum += factor * args.shared[token * args.width + col];
  }
  args.out[token * args.width + col] = sum;
}

}  // namespace

void choose_experts(const Experts& experts, const ChooseArgs& args, imago::cuda::Stream& stream) {
  if (args.tokens == 0) return;
  const ChooseWork work{.args = args,
                        .count = static_cast<unsigned>(experts.count),
                        .used = static_cast<unsigned>(experts.used),
                        .groups = static_cast<unsigned>(experts.groups),
                        .groups_used = static_cast<unsigned>(experts.groups_used),
                        .sigmoid = experts.scores == ExpertScores::sigmoid,
                        .two_judge_group = experts.two_judge_group,
                        .normalize = experts.normalize,
                        .scale = experts.scale};
  const std::size_t shared = 2 * (experts.count + experts.groups) * sizeof(float);
  if (shared > 48 * 1024) {
    imago::cuda::check(
        cudaFuncSetAttribute(choose, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of the choice of experts");
  }
  choose<<<static_cast<unsigned>(args.tokens), 32, shared, stream.handle()>>>(work);
  imago::cuda::check_launch("choose_experts");
}

void combine_experts(const CombineArgs& args, imago::cuda::Stream& stream) {
  if (args.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>((args.width + kThreads - 1) / kThreads), static_cast<unsigned>(args.tokens));
  combine<<<grid, kThreads, 0, stream.handle()>>>(args);
  imago::cuda::check_launch("combine_experts");
}

}  // namespace imago::backend::cuda
