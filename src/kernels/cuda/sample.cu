// The next token from logits. Sampler on the host sorts the candidates and walks along them. These kernels do not sort:
// each cut (top-k, top-p, the draw) is the position where a sum over the first candidates reaches a bound, and a few
// histograms find it. Sums are integers, so the result does not depend on the order in which threads add.

#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "device/cuda/check.h"
#include "imago/error.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/sample_order.h"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kThreads = 1024;
constexpr unsigned kListed = 1536, kListedInBin = 1024;
using Mass = unsigned long long;

/// Shared memory has atomic adds of 32 bits but emulates those of 64 with a loop, so masses are added as three numbers
/// of 13 bits, which kMostTokens candidates do not overflow.
constexpr int kMassParts = 3, kPartBits = 13;
constexpr std::size_t kMostTokens = (std::size_t{1} << (32 - kPartBits)) - 1;

/// A short list of candidates.
template <unsigned kRoom>
struct List {
  float logits[kRoom];
  std::uint32_t ids[kRoom];
};

struct Shared {
  std::uint32_t bins[kMassParts][kSampleBins];
  List<kListed> left;       // the remaining candidates, once they are few enough
  List<kListedInBin> near;  // those a selection still has to look at, once they are few enough
  Mass room[33];
  Mass rest;
  std::uint32_t bin, count;
};

/// f(value, index) for each of `count` values in device memory. One block reads them all, so each thread keeps four
/// loads of 16 bytes in flight.
template <class F>
__device__ __forceinline__ void each_value(const float* values, std::uint32_t count, F f) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(values) % 16 == 0;
  const std::uint32_t fours = is_aligned ? count / 4 : 0;
  for (std::uint32_t from = threadIdx.x; from < fours; from += 4 * kThreads) {
    float4 v[4];
#pragma unroll
    for (std::uint32_t u = 0; u < 4; ++u) {
      if (from + u * kThreads < fours) v[u] = reinterpret_cast<const float4*>(values)[from + u * kThreads];
    }
#pragma unroll
    for (std::uint32_t u = 0; u < 4; ++u) {
      const std::uint32_t at = from + u * kThreads;
      if (at >= fours) break;
      f(v[u].x, 4 * at), f(v[u].y, 4 * at + 1), f(v[u].z, 4 * at + 2), f(v[u].w, 4 * at + 3);
    }
  }
  for (std::uint32_t i = 4 * fours + threadIdx.x; i < count; i += kThreads) f(values[i], i);
}

/// A probability as an integer: 2^38 for the largest logit.
struct Probability {
  float largest, inverse_temperature;
  __device__ Mass operator()(float logit) const {
    return static_cast<Mass>(expf((logit - largest) * inverse_temperature) * 0x1p38f);
  }
};
struct One {
  __device__ Mass operator()(float) const { return 1; }
};

/// The candidates: all logits, or the list of those that remain.
struct Candidates {
  Shared& shared;
  const float* logits;
  std::uint32_t count;
  bool is_list;
  Cut cut;

  template <class F>
  __device__ __forceinline__ void each(F f) const {
    const auto look = [&](float logit, std::uint32_t id) {
      if (is_candidate(logit) && cut.has(order_key(logit), id)) f(logit, id);
    };
    if (is_list) {
      for (std::uint32_t i = threadIdx.x; i < count; i += kThreads) look(shared.left.logits[i], shared.left.ids[i]);
    } else {
      each_value(logits, count, look);
    }
  }

  __device__ Mass sum(Mass mine) const {
    return row_reduce<Mass>(mine, 0, shared.room, [](Mass a, Mass b) { return a + b; });
  }

  /// Copies the candidates with wanted(logit) into `list`. Returns their number; if it exceeds kRoom, some were
  /// dropped.
  template <unsigned kRoom, class Wanted>
  __device__ std::uint32_t gather(List<kRoom>& list, Wanted wanted) const {
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    each([&](float logit, std::uint32_t id) {
      if (!wanted(logit)) return;
      const std::uint32_t at = atomicAdd(&shared.count, 1u);
      if (at < kRoom) list.logits[at] = logit, list.ids[at] = id;
    });
    __syncthreads();
    return shared.count;
  }

  /// Switches to a list if few candidates remain: all later steps are then cheap.
  __device__ void shorten() {
    if (is_list) return;
    const std::uint32_t found = gather(shared.left, [](float) { return true; });
    if (found > kListed) return;
    is_list = true;
    count = found;
  }
};

__device__ __forceinline__ void add_mass(Shared& s, std::uint32_t bin, Mass mass) {
#pragma unroll
  for (int part = 0; part < kMassParts; ++part) {
    const auto bits = static_cast<std::uint32_t>(mass >> part * kPartBits) & ((1u << kPartBits) - 1);
    if (bits != 0) atomicAdd(&s.bins[part][bin], bits);
  }
}

__device__ __forceinline__ Mass mass_in(const Shared& s, std::uint32_t bin) {
  Mass mass = 0;
#pragma unroll
  for (int part = 0; part < kMassParts; ++part) mass += static_cast<Mass>(s.bins[part][bin]) << part * kPartBits;
  return mass;
}

/// The first bin at which the running sum reaches `left`; subtracts the sum before that bin from `left`.
__device__ std::uint32_t find_bin(Shared& s, Mass& left) {
  __syncthreads();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Mass a = mass_in(s, 2 * threadIdx.x), b = mass_in(s, 2 * threadIdx.x + 1);
  Mass upto = a + b;  // a scan over lanes, then one over warps
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Mass before = __shfl_up_sync(~0u, upto, step);
    if (lane >= step) upto += before;
  }
  if (lane == 31) s.room[warp] = upto;
  __syncthreads();
  Mass before_warp = lane < warp ? s.room[lane] : 0;
  before_warp = warp_sum(before_warp);
  const Mass before = before_warp + upto - a - b;
  if (before < left && left <= before + a + b) {
    const bool second = left > before + a;
    s.bin = 2 * threadIdx.x + (second ? 1 : 0);
    s.rest = left - before - (second ? a : 0);
  }
  __syncthreads();
  left = s.rest;
  return s.bin;
}

/// The fewest first candidates whose masses reach `wanted`. REQUIRES: 0 < wanted <= their sum.
template <class MassOf>
__device__ Cut select(const Candidates& candidates, float largest, MassOf mass_of, Mass wanted) {
  static_assert(kSampleBins == 2 * kThreads);
  Shared& s = candidates.shared;
  const auto clear = [&] {
    __syncthreads();
    for (auto& part : s.bins) part[threadIdx.x] = part[threadIdx.x + kThreads] = 0;
    __syncthreads();
  };
  clear();
  candidates.each([&](float logit, std::uint32_t) { add_mass(s, distance_bin(logit, largest), mass_of(logit)); });
  const std::uint32_t distance = find_bin(s, wanted);
  const std::uint32_t near =
      candidates.gather(s.near, [&](float logit) { return distance_bin(logit, largest) == distance; });
  std::uint32_t key = 0, id = 0;            // the bits known so far
  std::uint32_t key_mask = 0, id_mask = 0;  // which bits are known
  for (int step = 0; step < kDigitSteps; ++step) {
    const DigitStep digit = digit_step(step);
    if (step == 3 && near <= kListedInBin) {  // the key is known; usually the lowest id that has it is the answer
      __syncthreads();                        // all threads have read s.bin
      if (threadIdx.x == 0) s.bin = ~0u, s.count = 0;
      __syncthreads();
      for (std::uint32_t i = threadIdx.x; i < near; i += kThreads) {
        if (order_key(s.near.logits[i]) != key) continue;
        atomicMin(&s.bin, s.near.ids[i]);
        if (mass_of(s.near.logits[i]) >= wanted) atomicMax(&s.count, 1u);
      }
      __syncthreads();
      const std::uint32_t lowest = s.bin, is_first = s.count;
      __syncthreads();
      if (is_first != 0) return {key, lowest};
    }
    const std::uint32_t top = (1u << digit.bits) - 1;
    const auto look = [&](float logit, std::uint32_t its_id) {
      const std::uint32_t its_key = order_key(logit);
      if ((its_key & key_mask) != key || (its_id & id_mask) != id) return;
      const std::uint32_t value = (digit.of_id ? its_id : its_key) >> digit.shift & top;
      add_mass(s, digit.of_id ? value : top - value, mass_of(logit));  // large keys first, low ids first
    };
    clear();
    if (near <= kListedInBin) {
      for (std::uint32_t i = threadIdx.x; i < near; i += kThreads) look(s.near.logits[i], s.near.ids[i]);
    } else {
      candidates.each([&](float logit, std::uint32_t its_id) {
        if (distance_bin(logit, largest) == distance) look(logit, its_id);
      });
    }
    const std::uint32_t bin = find_bin(s, wanted);
    if (digit.of_id) {
      id |= bin << digit.shift, id_mask |= top << digit.shift;
    } else {
      key |= (top - bin) << digit.shift, key_mask |= top << digit.shift;
    }
  }
  return {key, id};
}

/// Choices travel as an argument of the kernel, which holds 4 KB.
constexpr std::size_t kRowsPerLaunch = 128;
struct SampleRows {
  SampleChoice choices[kRowsPerLaunch];
};

/// Grid: a block for each row.
__global__ void __launch_bounds__(kThreads)
    sample_rows(const __grid_constant__ SampleRows rows, const float* x, std::uint32_t cols, std::int32_t* ids) {
  extern __shared__ __align__(16) std::byte memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const SampleChoice a = rows.choices[blockIdx.x];
  const float* const logits = x + blockIdx.x * std::size_t{cols};
  std::int32_t* const out = ids + blockIdx.x;
  Candidates candidates{s, logits, cols, false, Cut{}};

  Mass best = 0;  // the key, then the complement of the id
  Mass mine = 0;
  candidates.each([&](float logit, std::uint32_t id) {
    best = max(best, static_cast<Mass>(order_key(logit)) << 32 | static_cast<Mass>(~id));
    ++mine;
  });
  best = row_reduce<Mass>(best, 0, s.room, [](Mass x, Mass y) { return x > y ? x : y; });
  Mass left = candidates.sum(mine);
  const std::uint32_t best_id = ~static_cast<std::uint32_t>(best);
  if (left == 0) {
    if (threadIdx.x == 0) *out = -1;
    return;
  }
  const float largest = logits[best_id];
  if (a.temperature == 0 || largest == INFINITY) {
    if (threadIdx.x == 0) *out = static_cast<std::int32_t>(best_id);
    return;
  }

  if (a.top_k != 0 && static_cast<Mass>(a.top_k) < left) {
    candidates.cut = select(candidates, largest, One{}, static_cast<Mass>(a.top_k));
    candidates.shorten();
  }
  const auto total_of = [&](const Probability& probability) {
    Mass sum = 0;
    candidates.each([&](float logit, std::uint32_t) { sum += probability(logit); });
    return candidates.sum(sum);
  };
  if (a.top_p < 1) {
    const Probability probability{largest, 1.0f};
    const Mass total = total_of(probability);
    const Mass wanted = static_cast<Mass>(ceil(static_cast<double>(a.top_p) * static_cast<double>(total)));
    candidates.cut = select(candidates, largest, probability, min(max(wanted, Mass{1}), total));
  }
  if (a.min_p > 0) {
    candidates.cut = cut_below(candidates.cut, static_cast<double>(largest) + log(static_cast<double>(a.min_p)));
  }
  candidates.shorten();
  const Probability probability{largest, 1.0f / a.temperature};
  const Mass total = total_of(probability);
  const Mass walked = static_cast<Mass>(a.random * static_cast<double>(total));
  const Cut chosen = select(candidates, largest, probability, min(walked, total - 1) + 1);
  if (threadIdx.x == 0) *out = static_cast<std::int32_t>(chosen.id);
}

constexpr unsigned kArgmaxBlocks = 8;             // a cluster shares a long row, which one block would read too slowly
constexpr std::uint32_t kArgmaxSplits = 1 << 14;  // values of the longest row that one block takes

/// Grid: blocks of a row × rows.
__global__ void __launch_bounds__(kThreads) argmax_rows(const float* x, std::uint32_t cols, std::int32_t* out) {
  __shared__ Mass room[33];
  wait_for_previous();
  const float* const row = x + blockIdx.y * std::size_t{cols};
  const std::uint32_t each = (cols / gridDim.x + 3) / 4 * 4;  // a multiple of 16 bytes
  const std::uint32_t begin = min(blockIdx.x * each, cols),
                      end = blockIdx.x + 1 == gridDim.x ? cols : min(begin + each, cols);
  Mass best = 0;
  each_value(row + begin, end - begin, [&](float value, std::uint32_t i) {
    if (value == value) best = max(best, static_cast<Mass>(order_key(value)) << 32 | static_cast<Mass>(~(begin + i)));
  });
  best = row_reduce<Mass>(best, 0, room, [](Mass a, Mass b) { return a > b ? a : b; });
#if __CUDA_ARCH__ >= 900
  if (gridDim.x > 1) {
    __shared__ Mass part;
    const auto cluster = cooperative_groups::this_cluster();
    if (threadIdx.x == 0) part = best;
    cluster.sync();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      for (unsigned block = 1; block < gridDim.x; ++block) best = max(best, *cluster.map_shared_rank(&part, block));
    }
    cluster.sync();  // shared memory of the other blocks must live until it was read
  }
#endif
  // The key of -infinity is not 0, so 0 means that all values are NaN.
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    out[blockIdx.y] = best == 0 ? 0 : static_cast<std::int32_t>(~static_cast<std::uint32_t>(best));
  }
}

}  // namespace

void argmax(const float* x, std::size_t rows, std::size_t cols, std::int32_t* out, Stream& stream) {
  if (rows == 0 || cols == 0) return;
  const unsigned blocks = imago::cuda::can_overlap() && cols > kArgmaxSplits ? kArgmaxBlocks : 1;
  launch_overlapped_cluster("argmax", argmax_rows, dim3(blocks, static_cast<unsigned>(rows)), kThreads, 0,
                            blocks > 1 ? blocks : 0, stream.handle(), x, static_cast<std::uint32_t>(cols), out);
}

void sample(const float* logits, std::span<const SampleChoice> rows, std::size_t cols, std::int32_t* out,
            Stream& stream) {
  if (cols > kMostTokens) throw UnsupportedError("[sample] the GPU's sampler takes up to 524287 tokens");
  for (std::size_t first = 0; first < rows.size(); first += kRowsPerLaunch) {
    const std::size_t count = std::min(kRowsPerLaunch, rows.size() - first);
    SampleRows some;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(first), count, some.choices);
    sample_rows<<<static_cast<unsigned>(count), kThreads, sizeof(Shared), stream.handle()>>>(
        some, logits + first * cols, static_cast<std::uint32_t>(cols), out + first);
    imago::cuda::check_launch("sample");
  }
}

}  // namespace imago::kernels::cuda
