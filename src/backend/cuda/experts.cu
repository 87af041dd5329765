#include "backend/cuda/experts.h"

#include <algorithm>

#include "device/cuda/check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/scalar_ops.h"

namespace imago::backend::cuda {

namespace {

using kernels::cuda::launch_overlapped;
using kernels::cuda::let_next_in;
using kernels::cuda::sigmoid_of;
using kernels::cuda::wait_for_previous;

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

/// Orders floats as unsigned numbers; NaN comes before all others.
__device__ std::uint32_t order_of(float value) {
  if (isnan(value)) return 0;
  const std::uint32_t bits = __float_as_uint(value);
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

/// The place of the largest entry, the first of equals; NaN is never the largest. All lanes of the warp get it.
__device__ unsigned best_of(const float* entries, unsigned count) {
  std::uint32_t best = 0;
  unsigned place = 0;  // what is left if there is nothing but NaN
  for (unsigned i = threadIdx.x; i < count; i += 32) {
    const std::uint32_t order = order_of(entries[i]);
    if (order > best) best = order, place = i;
  }
  const std::uint32_t largest = __reduce_max_sync(~0u, best);
  return largest == 0 ? 0 : __reduce_min_sync(~0u, best == largest ? place : ~0u);
}

/// A warp for each token. Shared memory: scores and ranks of all experts, then those of the groups and which are kept.
__global__ void choose(ChooseWork work) {
  extern __shared__ float memory[];
  let_next_in();
  wait_for_previous();
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

constexpr unsigned kArrangeThreads = 1024;

/// One block. Shared memory: the rows of each expert, then the places of its next row and of its first tile.
__global__ void __launch_bounds__(kArrangeThreads) arrange(ArrangeArgs args) {
  extern __shared__ std::int32_t numbers[];
  std::int32_t* const counts = numbers;
  std::int32_t* const next = counts + args.experts;
  std::int32_t* const first_tiles = next + args.experts;
  const auto tile = static_cast<std::int32_t>(args.tiles.rows);
  for (std::size_t e = threadIdx.x; e < args.experts; e += kArrangeThreads) counts[e] = 0;
  for (std::size_t i = threadIdx.x; i < args.tiles.most; i += kArrangeThreads) args.list[i].expert = -1;
  for (std::size_t i = threadIdx.x; i < std::size_t{args.tiles.most} * args.tiles.rows; i += kArrangeThreads) {
    args.tokens[i] = args.places[i] = -1;
  }
  __syncthreads();
  for (std::size_t i = threadIdx.x; i < args.rows; i += kArrangeThreads) atomicAdd(&counts[args.chosen[i]], 1);
  __syncthreads();

  if (threadIdx.x < 32) {  // each lane adds up some neighbouring experts
    const std::size_t each = (args.experts + 31) / 32;
    const std::size_t begin = min(threadIdx.x * each, args.experts), end = min(begin + each, args.experts);
    std::int32_t rows = 0, tiles = 0;
    for (std::size_t e = begin; e < end; ++e) rows += counts[e], tiles += (counts[e] + tile - 1) / tile;
    std::int32_t rows_before = rows, tiles_before = tiles;
    for (unsigned step = 1; step < 32; step *= 2) {
      const std::int32_t more_rows = __shfl_up_sync(~0u, rows_before, step);
      const std::int32_t more_tiles = __shfl_up_sync(~0u, tiles_before, step);
      if (threadIdx.x >= step) rows_before += more_rows, tiles_before += more_tiles;
    }
    rows_before -= rows;
    tiles_before -= tiles;
    for (std::size_t e = begin; e < end; ++e) {
      next[e] = rows_before;
      first_tiles[e] = tiles_before;
      rows_before += counts[e];
      tiles_before += (counts[e] + tile - 1) / tile;
    }
  }
  __syncthreads();
  for (std::size_t e = threadIdx.x; e < args.experts; e += kArrangeThreads) {
    for (std::int32_t first = 0; first < counts[e]; first += tile) {
      args.list[first_tiles[e] + first / tile] = {
          .expert = static_cast<std::int32_t>(e), .first = next[e] + first, .count = min(tile, counts[e] - first)};
    }
  }
  __syncthreads();
  // Where in its tiles a row lies does not change what is computed of it, so threads may race for the places.
  for (std::size_t e = threadIdx.x; e < args.experts; e += kArrangeThreads) counts[e] = next[e];
  __syncthreads();
  for (std::size_t i = threadIdx.x; i < args.rows; i += kArrangeThreads) {
    const std::int32_t expert = args.chosen[i];
    const std::int32_t place = atomicAdd(&next[expert], 1);
    const std::int32_t at = first_tiles[expert] * tile + place - counts[expert];
    args.tokens[at] = static_cast<std::int32_t>(i / args.used);
    args.places[at] = place;
    args.row_of[i] = place;
  }
}

__global__ void combine(CombineArgs args) {
  let_next_in();
  wait_for_previous();
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
  float& out = args.out[token * args.width + col];
  out = args.add ? out + args.factor * sum : sum;
}

/// Without this a kernel has at most 48 KiB.
template <class... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  if (bytes <= 48 * 1024) return;
  imago::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                     "shared memory of the choice of experts");
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
  allow_shared(choose, shared);
  launch_overlapped("choose_experts", choose, static_cast<unsigned>(args.tokens), 32, shared, stream, work);
}

void arrange_experts(const ArrangeArgs& args, imago::cuda::Stream& stream) {
  if (args.rows == 0) return;
  const std::size_t shared = 3 * args.experts * sizeof(std::int32_t);
  allow_shared(arrange, shared);
  arrange<<<1, kArrangeThreads, shared, stream.handle()>>>(args);
  imago::cuda::check_launch("arrange_experts");
}

void combine_experts(const CombineArgs& args, imago::cuda::Stream& stream) {
  if (args.tokens == 0) return;
  const dim3 grid(static_cast<unsigned>((args.width + kThreads - 1) / kThreads), static_cast<unsigned>(args.tokens));
  launch_overlapped("combine_experts", combine, grid, kThreads, 0, stream, args);
}

}  // namespace imago::backend::cuda
