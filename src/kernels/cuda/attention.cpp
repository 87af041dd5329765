// Which kernel computes attention.

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch.h"

namespace imago::kernels::cuda {

namespace {

bool are_few(const TokenPlaces& places) { return places.tokens <= kDecodeTokens || places.separate; }

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
          .rows = cache_rows(args.shape),
          .caches = args.caches,
          .sequence = places.sequence,
          .position = places.position};
}

/// `unplaced`: what is still to be turned and put into the caches, if anything.
void decode(const AttentionArgs& args, const TokenPlaces& places, const AttentionWork& common,
            const PlaceArgs* unplaced, Stream& stream) {
  const std::size_t cluster_keys = !can_overlap()                      ? 0
                                   : args.shape.type == CacheType::f16 ? kClusterKeysF16
                                                                       : kClusterKeys;
  const DecodePlan plan = plan_for(args.shape, args.heads, places, args.window, cluster_keys);
  DecodeWork work{common};
  work.chunks = static_cast<std::uint32_t>((common.group + kDecodeHeads - 1) / kDecodeHeads);
  work.is_cluster = plan.is_cluster;
  work.counters = reinterpret_cast<std::uint32_t*>(args.scratch);
  work.parts = reinterpret_cast<float*>(args.scratch + kDecodeCounterBytes);
  if (unplaced != nullptr) {
    work.k = unplaced->k;
    work.v = unplaced->v;
    work.turn = head_turn(*unplaced, unplaced->q_norm, unplaced->k_norm);
  }
  switch (args.shape.type) {
    case CacheType::f32: return launch_decode<CacheType::f32>(work, plan, stream);
    case CacheType::f16: return launch_decode<CacheType::f16>(work, plan, stream);
    case CacheType::q8_0: return launch_decode<CacheType::q8_0>(work, plan, stream);
  }
}

void prefill(CacheType type, const AttentionWork& work, Stream& stream) {
  switch (type) {
    case CacheType::f32: return launch_prefill<CacheType::f32>(work, stream);
    case CacheType::f16: return launch_prefill<CacheType::f16>(work, stream);
    case CacheType::q8_0: return launch_prefill<CacheType::q8_0>(work, stream);
  }
}

}  // namespace

void check_head_values(std::size_t head_values) {
  if (head_values != 0 && head_values <= kMostHeadValues) return;
  throw UnsupportedError(
      fmt::format("[attention] the GPU's kernels take heads of up to {} values, not {}", kMostHeadValues, head_values));
}

std::size_t attention_scratch_bytes(const CacheShape& shape, std::size_t heads, const TokenPlaces& places) {
  if (!are_few(places) || shape.heads == 0) return kDecodeCounterBytes;
  return decode_scratch_bytes(plan_for(shape, heads, places, 0, 0), heads / shape.heads, shape.head_values);
}

namespace {

bool fits_tiles(const CacheShape& shape) { return shape.head_values % 8 == 0; }

/// Of few tokens the tensor cores' products are exact to 22 bits, but for float32 keys.
bool decodes(const AttentionArgs& args, const TokenPlaces& places) {
  return fits_tiles(args.shape) && are_few(places) && !(args.exact && args.shape.type == CacheType::f32);
}

void check(const AttentionArgs& args) {
  const CacheShape& shape = args.shape;
  if (shape.heads == 0 || args.heads == 0 || args.heads % shape.heads != 0) {
    throw ShapeError(fmt::format("[attention] {} heads cannot share {}", args.heads, shape.heads));
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
    prefill(shape.type, work, stream);
  } else {
    exact_attention(work, shape.type, stream);
  }
  if (args.int8.q != nullptr && !made_int8) {
    quantize(args.y, places.tokens, args.heads * shape.head_values, args.int8, stream);
  }
}

/// Norms over whole rows are made by a kernel of their own.
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
  const bool together = (places.tokens == 1 || places.separate) && decodes(args, places) &&
                        args.heads / args.shape.heads <= kDecodeHeads &&
                        norms_heads(place_args.q_norm, place_args.q_norm_cols, args.shape) &&
                        norms_heads(place_args.k_norm, place_args.k_norm_cols, args.shape);
  if (!together) place(place_args, places, stream);
  attend(args, places, together ? &place_args : nullptr, stream);
}

}  // namespace imago::kernels::cuda
