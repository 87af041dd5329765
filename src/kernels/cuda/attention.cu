// Attention over a cache: chooses the kernel, stores heads in the cache (place), and computes attention in float32 for
// comparisons, for exact arithmetic and for head sizes that do not fit the tiles of tensor cores.

#include <algorithm>
#include <string>

#include "device/cuda/check.h"
#include "imago/error.h"
#include "kernels/cuda/attention_wide.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/launch.cuh"

namespace imago::kernels::cuda {

namespace {

/// Calls run(most) with the widest heads of its kernel as a constant: wide ones take more registers.
template <class Run>
void with_width(std::size_t head_values, Run run) {
  if (head_values <= kMostTileValues) return run(std::integral_constant<int, kMostTileValues>());
  run(std::integral_constant<int, kMostHeadValues>());
}

// ---- place: a warp takes one head of one token

constexpr unsigned kPlaceWarps = 4;  // of a block

struct PlaceWork {
  float* q;
  const float* k;
  const float* v;
  HeadRotation rotation;
  std::uint32_t heads, kv_heads, tokens;
  CacheRows rows;
  const GpuCache* caches;
  const std::int32_t* sequence;
  const std::int32_t* position;
};

/// Heads of up to kMost values.
template <int kMost, CacheType kType, bool kPaged>
__global__ void __launch_bounds__(32 * kPlaceWarps) place_heads(PlaceWork a) {
  __shared__ float room[kPlaceWarps][kMost];
  wait_for_previous();
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  // A token has its queries, its keys, its values.
  const unsigned slots = a.heads + (a.k == nullptr ? 0 : 2 * a.kv_heads);
  const std::size_t index = blockIdx.x * std::size_t{kPlaceWarps} + warp;
  if (index >= std::size_t{a.tokens} * slots) return;
  const unsigned token = static_cast<unsigned>(index / slots), slot = static_cast<unsigned>(index % slots);
  const std::int32_t position = a.position[token];
  const unsigned values = a.rows.head_values;
  const bool is_query = slot < a.heads, is_key = !is_query && slot < a.heads + a.kv_heads;
  const unsigned head = is_query ? slot : is_key ? slot - a.heads : slot - a.heads - a.kv_heads;
  const std::size_t from = (std::size_t{token} * (is_query ? a.heads : a.kv_heads) + head) * values;
  const float* const source = (is_query ? a.q : is_key ? a.k : a.v) + from;
  float* const x = room[warp];
  FetchedHead<kMost> fetched;
  fetched.fetch(source, values);
  if (position < 0) return;
  FetchedRotation<kMost> rotation;
  if (is_query || is_key) rotation.fetch(a.rotation, position);
  fetched.put(values, x);
  rotate_head(a.rotation, values,
              is_query ? HeadKind::query
              : is_key ? HeadKind::key
                       : HeadKind::value,
              position, rotation, x);

  if (is_query) {
    for (unsigned i = lane; i < values; i += 32) a.q[from + i] = x[i];
    return;
  }
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  std::byte* const plane = (is_key ? cache.keys : cache.values) + head * a.rows.head_bytes;
  store_head<kType, kPaged>(a.rows, plane, cache.pages, position, x);
}

/// Applies a norm over whole rows with a kernel of its own, since no warp of place_heads sees a row. Returns the norm
/// that remains.
const float* norm_rows_first(float* x, const float* weight, std::size_t norm_cols, std::size_t heads,
                             const PlaceArgs& args, std::size_t tokens, Stream& stream) {
  if (weight == nullptr || norm_cols == args.shape.head_values) return weight;
  norm({.x = x,
        .weight = weight,
        .y = x,
        .rows = tokens * heads * args.shape.head_values / norm_cols,
        .cols = norm_cols,
        .eps = args.norm_eps},
       stream);
  return nullptr;
}

// ---- attention in float32: a warp takes one head of one token, its lanes the values of the head

constexpr unsigned kExactWarps = 8;
constexpr unsigned kKeys = 4;  // at a time: their sums over lanes do not wait for each other

template <CacheType kType>
__device__ float value_at(const std::byte* row, unsigned i) {
  if constexpr (kType == CacheType::f32) return reinterpret_cast<const float*>(row)[i];
  if constexpr (kType == CacheType::f16) return float_of_half(reinterpret_cast<const std::uint16_t*>(row)[i]);
  const std::byte* const block = row + i / 32 * kQ8Bytes;
  const float scale = float_of_half(*reinterpret_cast<const std::uint16_t*>(block));
  return scale * static_cast<float>(reinterpret_cast<const std::int8_t*>(block)[2 + i % 32]);
}

template <int kMost, CacheType kType, bool kPaged>
__global__ void __launch_bounds__(32 * kExactWarps) exact_attention(AttentionWork a) {
  constexpr unsigned kLaneValues = kMost / 32;
  const unsigned lane = threadIdx.x % 32;
  const std::size_t row = blockIdx.x * std::size_t{kExactWarps} + threadIdx.x / 32;
  if (row >= std::size_t{a.tokens} * a.heads) return;
  const unsigned token = static_cast<unsigned>(row / a.heads), head = static_cast<unsigned>(row % a.heads);
  const SeenKeys seen = a.seen(token);
  if (seen.last < 0) return;
  const unsigned values = a.rows.head_values;
  const GpuCache cache = a.caches[a.sequence == nullptr ? 0 : a.sequence[token]];
  const std::byte* const key_rows = cache.keys + head / a.group * a.rows.head_bytes;
  const std::byte* const value_rows = cache.values + head / a.group * a.rows.head_bytes;
  const unsigned first = static_cast<unsigned>(seen.first), end = static_cast<unsigned>(seen.last) + 1;

  float q[kLaneValues], sums[kLaneValues] = {};
#pragma unroll
  for (unsigned i = 0; i < kLaneValues; ++i) q[i] = lane + 32 * i < values ? a.q[row * values + lane + 32 * i] : 0.0f;
  float largest = -INFINITY, total = 0;
  for (unsigned key = first; key < end; key += kKeys) {
    const PageWindow<kPaged> window(a.rows, cache.pages, key, min(key + kKeys, end) - 1);
    float score[kKeys] = {};
    float top = largest;
#pragma unroll
    for (unsigned k = 0; k < kKeys; ++k) {
      if (key + k < end) {
        const std::byte* const from = key_rows + window.offset(key + k);
#pragma unroll
        for (unsigned i = 0; i < kLaneValues; ++i) {
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
    for (unsigned i = 0; i < kLaneValues; ++i) sums[i] *= shrink;
#pragma unroll
    for (unsigned k = 0; k < kKeys; ++k) {
      if (key + k >= end) break;
      const float weight = expf(score[k] - largest);
      total += weight;
      const std::byte* const from = value_rows + window.offset(key + k);
#pragma unroll
      for (unsigned i = 0; i < kLaneValues; ++i) {
        if (lane + 32 * i < values) sums[i] += weight * value_at<kType>(from, lane + 32 * i);
      }
    }
  }
  if (a.sinks != nullptr) total += expf(a.sinks[head] - largest);
#pragma unroll
  for (unsigned i = 0; i < kLaneValues; ++i) {
    if (lane + 32 * i < values) a.y[row * values + lane + 32 * i] = sums[i] / total;
  }
}

void exact_attention(const AttentionWork& work, const AttentionArgs& args, Stream& stream) {
  const std::size_t rows = std::size_t{work.tokens} * work.heads;
  const auto blocks = static_cast<unsigned>((rows + kExactWarps - 1) / kExactWarps);
  with_cache(args.shape.type, args.paged, [&](auto type, auto paged) {
    with_width(args.shape.head_values, [&](auto most) {
      exact_attention<most(), type(), paged()><<<blocks, 32 * kExactWarps, 0, stream.handle()>>>(work);
    });
  });
  imago::cuda::check_launch("attention in float32");
}

// ---- attention with wide heads, split over keys

/// Adds the sums of the splits of a row: a block for each.
__global__ void __launch_bounds__(128) combine_wide(WideWork a, unsigned splits, unsigned value_end) {
  __shared__ float factors[kDecodeBlocks];
  __shared__ float whole;
  wait_for_previous();
  const unsigned token = blockIdx.x / a.heads, head = blockIdx.x % a.heads, stride = a.rows.head_values + 2;
  if (a.position[token] < 0) return;
  const float* const partials = a.partials + std::size_t{blockIdx.x} * splits * stride;
  if (threadIdx.x < 32) {
    const auto largest_of = [&](unsigned k) { return partials[k * stride + a.rows.head_values]; };
    float largest = -INFINITY, total = 0;
    for (unsigned k = threadIdx.x; k < splits; k += 32) largest = fmaxf(largest, largest_of(k));
    largest = warp_max(largest);
    for (unsigned k = threadIdx.x; k < splits; k += 32) {
      factors[k] = power_of_2(largest_of(k) - largest);
      total += factors[k] * partials[k * stride + a.rows.head_values + 1];
    }
    total = warp_sum(total);
    if (a.sinks != nullptr) total += power_of_2(a.sinks[head] * kLog2E - (largest - kWideBoost));
    if (threadIdx.x == 0) whole = total;
  }
  __syncthreads();
  for (unsigned i = threadIdx.x; i < value_end; i += blockDim.x) {
    float sum = 0;
#pragma unroll 4
    for (unsigned k = 0; k < splits; ++k) sum += factors[k] * partials[k * stride + i];
    a.y[std::size_t{blockIdx.x} * a.rows.head_values + i] = sum / whole;
  }
}

}  // namespace

// ---- the choice of a kernel

namespace {

bool are_few(const TokenPlaces& places) { return places.tokens <= kDecodeTokens || places.separate; }

WidePlan plan_wide(const CacheShape& shape, std::size_t heads, const TokenPlaces& places) {
  return wide_plan(places.tokens, shape.heads, heads / shape.heads, shape.head_values,
                   are_few(places) && places.text_end == nullptr ? places.longest + 1 : 0);
}

/// Shared memory that a block of the current device may ask for.
std::size_t shared_bytes_of_block() {
  int device = 0, bytes = 0;
  imago::cuda::check(cudaGetDevice(&device), "the device of attention");
  imago::cuda::check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
                     "shared memory of a block");
  return static_cast<std::size_t>(bytes);
}

DecodePlan plan_for(const CacheShape& shape, std::size_t heads, const TokenPlaces& places, std::size_t window,
                    std::size_t most_cluster_keys) {
  const std::size_t keys = window == 0 ? places.longest + 1 : std::min(window, places.longest + 1);
  return decode_plan(places.tokens, shape.heads, heads / shape.heads, keys, most_cluster_keys);
}

AttentionWork work_for(const AttentionArgs& args, const TokenPlaces& places) {
  return {.q = args.q,
          .y = args.y,
          .int8 = {},
          .tokens = static_cast<std::uint32_t>(places.tokens),
          .heads = static_cast<std::uint32_t>(args.heads),
          .kv_heads = static_cast<std::uint32_t>(args.shape.heads),
          .group = static_cast<std::uint32_t>(args.heads / args.shape.heads),
          .window = static_cast<std::uint32_t>(args.window),
          .scale = args.options.scale,
          .cap = args.options.cap,
          .sinks = args.sinks,
          .rows = cache_rows(args.shape),
          .caches = args.caches,
          .sequence = places.sequence,
          .position = places.position,
          .text_end = places.text_end};
}

/// `unplaced`: heads that still have to be rotated and stored in the caches; null: none.
void decode(const AttentionArgs& args, const TokenPlaces& places, const AttentionWork& common,
            const PlaceArgs* unplaced, Stream& stream) {
  const std::size_t cluster_keys = !imago::cuda::can_overlap()         ? 0
                                   : args.shape.type == CacheType::f16 ? kClusterKeysF16
                                                                       : kClusterKeys;
  const DecodePlan plan = plan_for(args.shape, args.heads, places, args.window, cluster_keys);
  DecodeWork work{common};
  work.chunks = static_cast<std::uint32_t>((common.group + kDecodeHeads - 1) / kDecodeHeads);
  work.is_cluster = plan.is_cluster;
  work.counters = reinterpret_cast<std::uint32_t*>(args.scratch);
  work.partials = reinterpret_cast<float*>(args.scratch + kDecodeCounterBytes);
  if (unplaced != nullptr) {
    work.k = unplaced->k;
    work.v = unplaced->v;
    work.rotation = head_rotation(*unplaced, unplaced->q_norm, unplaced->k_norm);
  }
  with_cache(args.shape.type, args.paged,
             [&](auto type, auto paged) { launch_decode<type(), paged()>(work, plan, stream); });
}

}  // namespace

void check_head_values(std::size_t head_values) {
  if (head_values != 0 && head_values <= kMostHeadValues) return;
  throw UnsupportedError("[attention] GPU kernels support heads of up to " + std::to_string(kMostHeadValues) +
                         " values, got " + std::to_string(head_values));
}

std::size_t attention_scratch_bytes(const CacheShape& shape, std::size_t heads, const TokenPlaces& places) {
  if (!are_few(places) || shape.heads == 0) return kDecodeCounterBytes;
  if (shape.head_values > kMostTileValues) return kDecodeCounterBytes + plan_wide(shape, heads, places).partial_bytes;
  return decode_scratch_bytes(plan_for(shape, heads, places, 0, 0), heads / shape.heads, shape.head_values);
}

namespace {

bool fits_tiles(const CacheShape& shape) { return shape.head_values % 8 == 0 && shape.head_values <= kMostTileValues; }

/// Whether values, and the memory of a block, suffice for the tiles of attention_wide.cuh.
bool fits_wide_tiles(const AttentionArgs& args) {
  const std::size_t head_values = args.shape.head_values;
  const std::size_t values = args.shared_values == 0 ? head_values : args.shared_values;
  return head_values % 8 == 0 && values <= kMostWideValues &&
         wide_shared_bytes(head_values, args.shared_values != 0, kWideTall) <= shared_bytes_of_block();
}

/// Decoding attention is exact to 22 bits: enough for `exact`, except with float32 keys.
bool decodes(const AttentionArgs& args, const TokenPlaces& places) {
  return fits_tiles(args.shape) && are_few(places) && places.text_end == nullptr &&
         !(args.exact && args.shape.type == CacheType::f32);
}

void attend_wide(const AttentionArgs& args, const TokenPlaces& places, const AttentionWork& common, Stream& stream) {
  const CacheShape& shape = args.shape;
  const WidePlan plan = plan_wide(shape, args.heads, places);
  WideWork work{common};
  work.shared_values = static_cast<std::uint32_t>(args.shared_values);
  work.partials = reinterpret_cast<float*>(args.scratch + kDecodeCounterBytes);
  with_cache(shape.type, args.paged, [&](auto type, auto paged) { launch_wide<type(), paged()>(work, plan, stream); });
  if (plan.splits == 1) return;
  launch_overlapped("sums of attention with wide heads", combine_wide, work.tokens * work.heads, 128, 0, stream, work,
                    static_cast<unsigned>(plan.splits),
                    work.shared_values != 0 ? work.shared_values : work.rows.head_values);
}

void check(const AttentionArgs& args) {
  const CacheShape& shape = args.shape;
  if (shape.heads == 0 || args.heads == 0 || args.heads % shape.heads != 0) {
    throw ShapeError("[attention] " + std::to_string(args.heads) + " query heads cannot share " +
                     std::to_string(shape.heads) + " key heads");
  }
  check_head_values(shape.head_values);
}

void attend(const AttentionArgs& args, const TokenPlaces& places, const PlaceArgs* unplaced, Stream& stream) {
  const CacheShape& shape = args.shape;
  AttentionWork work = work_for(args, places);
  bool made_int8 = false;
  if (decodes(args, places)) {
    made_int8 = shape.head_values % 32 == 0;
    if (made_int8) work.int8 = args.int8;
    decode(args, places, work, unplaced, stream);
  } else if (fits_tiles(shape) && !args.exact) {
    with_cache(shape.type, args.paged, [&](auto type, auto paged) { launch_prefill<type(), paged()>(work, stream); });
  } else if (shape.head_values > kMostTileValues && !args.exact && fits_wide_tiles(args)) {
    attend_wide(args, places, work, stream);
  } else {
    exact_attention(work, args, stream);
  }
  if (args.int8.q != nullptr && !made_int8) {
    quantize(args.y, places.tokens, args.heads * shape.head_values, args.int8, stream);
  }
}

/// Norms over whole rows need a kernel of their own.
bool norms_heads(const float* weight, std::size_t cols, const CacheShape& shape) {
  return weight == nullptr || cols == shape.head_values;
}

}  // namespace

void attention(const AttentionArgs& args, const TokenPlaces& places, Stream& stream) {
  if (places.tokens == 0) return;
  check(args);
  attend(args, places, nullptr, stream);
}

void place_and_attend(const PlaceArgs& place_args, const AttentionArgs& args, const TokenPlaces& places,
                      Stream& stream) {
  if (places.tokens == 0) return;
  check(args);
  const bool together = place_args.k != nullptr && (places.tokens == 1 || places.separate) && decodes(args, places) &&
                        args.heads / args.shape.heads <= kDecodeHeads &&
                        norms_heads(place_args.q_norm, place_args.q_norm_cols, args.shape) &&
                        norms_heads(place_args.k_norm, place_args.k_norm_cols, args.shape);
  if (!together) place(place_args, places, stream);
  attend(args, places, together ? &place_args : nullptr, stream);
}

void place(const PlaceArgs& args, const TokenPlaces& places, Stream& stream) {
  if (places.tokens == 0) return;
  const CacheShape& shape = args.shape;
  check_head_values(shape.head_values);
  if (args.k != nullptr && args.v == args.k && !norms_heads(args.k_norm, args.k_norm_cols, shape)) {
    throw UnsupportedError("[attention] GPU kernels do not take values from keys that are normed as whole rows");
  }
  const float* const q_norm =
      norm_rows_first(args.q, args.q_norm, args.q_norm_cols, args.heads, args, places.tokens, stream);
  const float* const k_norm = args.k == nullptr ? nullptr
                                                : norm_rows_first(args.k, args.k_norm, args.k_norm_cols, shape.heads,
                                                                  args, places.tokens, stream);
  const PlaceWork work{.q = args.q,
                       .k = args.k,
                       .v = args.v,
                       .rotation = head_rotation(args, q_norm, k_norm),
                       .heads = static_cast<std::uint32_t>(args.heads),
                       .kv_heads = static_cast<std::uint32_t>(shape.heads),
                       .tokens = static_cast<std::uint32_t>(places.tokens),
                       .rows = cache_rows(shape),
                       .caches = args.caches,
                       .sequence = places.sequence,
                       .position = places.position};
  const std::size_t warps = places.tokens * (args.heads + (args.k == nullptr ? 0 : 2 * shape.heads));
  const auto blocks = static_cast<unsigned>((warps + kPlaceWarps - 1) / kPlaceWarps);
  with_cache(shape.type, args.paged, [&](auto type, auto paged) {
    with_width(shape.head_values, [&](auto most) {
      launch_overlapped("place", place_heads<most(), type(), paged()>, blocks, 32 * kPlaceWarps, 0, stream, work);
    });
  });
}

}  // namespace imago::kernels::cuda
