// Attention in float32 throughout, for heads of any size up to 256: a warp takes one head of one token, its lanes the
// values of the head. For comparisons, for arithmetic that must be exact, and for sizes that the tensor cores' tiles do
// not fit.

#include "device/cuda/check.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/cache_rows.cuh"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

namespace {

constexpr unsigned kWarps = 8;
constexpr unsigned kKeys = 4;    // at a time: their sums over lanes do not wait for each other
constexpr unsigned kPieces = 8;  // 32 · 8 values

template <CacheType kType>
__device__ float value_at(const std::byte* row, unsigned i) {
  if constexpr (kType == CacheType::f32) return reinterpret_cast<const float*>(row)[i];
  if constexpr (kType == CacheType::f16) return float_of_half(reinterpret_cast<const std::uint16_t*>(row)[i]);
  const std::byte* const block = row + i / 32 * kQ8Bytes;
  const float scale = float_of_half(*reinterpret_cast<const std::uint16_t*>(block));
  return scale * static_cast<float>(reinterpret_cast<const std::int8_t*>(block)[2 + i % 32]);
}

template <CacheType kType>
__global__ void __launch_bounds__(32 * kWarps) exact_attention(AttentionWork a) {
  const unsigned lane = threadIdx.x % 32;
  const std::size_t row = blockIdx.x * std::size_t{kWarps} + threadIdx.x / 32;
  if (row >= std::size_t{a.tokens} * a.heads) return;
  const unsigned token = static_cast<unsigned>(row / a.heads), head = static_cast<unsigned>(row % a.heads);
  const std::int32_t position = a.position[token];
  if (position < 0) return;
  const unsigned values = a.rows.head_values;
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  const std::byte* const key_rows = cache.keys + head / a.group * a.rows.head_bytes;
  const std::byte* const value_rows = cache.values + head / a.group * a.rows.head_bytes;
  const unsigned first = first_key(position, a.window), end = static_cast<unsigned>(position) + 1;

  float q[kPieces], sums[kPieces] = {};
#pragma unroll
  for (unsigned i = 0; i < kPieces; ++i) q[i] = lane + 32 * i < values ? a.q[row * values + lane + 32 * i] : 0.0f;
  float largest = -INFINITY, total = 0;
  for (unsigned key = first; key < end; key += kKeys) {
    float score[kKeys] = {};
    float top = largest;
#pragma unroll
    for (unsigned k = 0; k < kKeys; ++k) {
      if (key + k < end) {
        const std::byte* const from = key_rows + std::size_t{key + k} * a.rows.row_bytes;
#pragma unroll
        for (unsigned i = 0; i < kPieces; ++i) {
          if (lane + 32 * i < values) score[k] += q[i] * value_at<kType>(from, lane + 32 * i);
        }
      }
      score[k] = warp_sum(score[k]) * a.scale;
      if (a.cap > 0) score[k] = a.cap * tanhf(score[k] / a.cap);
      if (key + k >= end) score[k] = -INFINITY;
      top = fmaxf(top, score[k]);
    }
    const float shrink = expf(largest - top);
    largest = top;
    total *= shrink;
#pragma unroll
    for (unsigned i = 0; i < kPieces; ++i) sums[i] *= shrink;
#pragma unroll
    for (unsigned k = 0; k < kKeys; ++k) {
      if (key + k >= end) break;
      const float weight = expf(score[k] - largest);
      total += weight;
      const std::byte* const from = value_rows + std::size_t{key + k} * a.rows.row_bytes;
#pragma unroll
      for (unsigned i = 0; i < kPieces; ++i) {
        if (lane + 32 * i < values) sums[i] += weight * value_at<kType>(from, lane + 32 * i);
      }
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kPieces; ++i) {
    if (lane + 32 * i < values) a.y[row * values + lane + 32 * i] = sums[i] / total;
  }
}

}  // namespace

void exact_attention(const AttentionWork& work, CacheType type, Stream& stream) {
  const std::size_t rows = std::size_t{work.tokens} * work.heads;
  const auto blocks = static_cast<unsigned>((rows + kWarps - 1) / kWarps);
  switch (type) {
    case CacheType::f32: exact_attention<CacheType::f32><<<blocks, 32 * kWarps, 0, stream.handle()>>>(work); break;
    case CacheType::f16: exact_attention<CacheType::f16><<<blocks, 32 * kWarps, 0, stream.handle()>>>(work); break;
    case CacheType::q8_0: exact_attention<CacheType::q8_0><<<blocks, 32 * kWarps, 0, stream.handle()>>>(work); break;
  }
  imago::cuda::check_launch("attention in float32");
}

}  // namespace imago::kernels::cuda
