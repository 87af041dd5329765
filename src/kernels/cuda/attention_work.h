#pragma once

// What the kernels of attention get, by value, and the launches that attention chooses from.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plan.h"

namespace imago::kernels::cuda {

/// The numbers of a CacheShape that kernels need.
struct CacheRows {
  std::size_t head_bytes;  ///< from a head to the next
  std::uint32_t row_bytes;
  std::uint32_t head_values;
};

inline CacheRows cache_rows(const CacheShape& shape) {
  return {shape.head_bytes(), static_cast<std::uint32_t>(shape.row_bytes()),
          static_cast<std::uint32_t>(shape.head_values)};
}

/// What is done to heads before they meet: norms, where given, and rotation.
struct HeadTurn {
  const float* q_norm;  // [head_values]; null: none, or done before
  const float* k_norm;
  float eps;
  const float* rope;  // null: none
  std::uint32_t rotary;
  RopePairs pairs;
};

/// `q_norm`, `k_norm`: the norms that are left to do.
inline HeadTurn head_turn(const PlaceArgs& args, const float* q_norm, const float* k_norm) {
  return {.q_norm = q_norm,
          .k_norm = k_norm,
          .eps = args.norm_eps,
          .rope = args.rope,
          .rotary = static_cast<std::uint32_t>(args.rotary),
          .pairs = args.pairs};
}

inline constexpr std::size_t kMostHeadValues = 256;
/// Throws UnsupportedError for heads that no kernel takes.
void check_head_values(std::size_t head_values);

struct AttentionWork {
  const float* q;  // [tokens][heads][head_values]
  float* y;
  Int8Out int8;  // of few tokens, where blocks of 32 columns do not straddle heads; else null
  std::uint32_t tokens, heads, kv_heads, group;
  std::uint32_t window;
  float scale, cap;
  CacheRows rows;
  const GpuCache* caches;
  const std::int32_t* sequence;
  const std::int32_t* position;
};

/// Few tokens: see attention_decode.cuh. Heads of a multiple of 8 values up to 256.
struct DecodeWork : AttentionWork {
  std::uint32_t chunks = 1;  // of kDecodeHeads heads or fewer in a group
  bool is_cluster = false;   // the splits of a unit are one cluster
  // Where k is given, queries are turned here, and keys and values put into the cache. Of tokens that do not see each
  // other, with one chunk.
  const float* k = nullptr;  // [tokens][kv_heads][head_values]
  const float* v = nullptr;
  HeadTurn turn = {};
  std::uint32_t* counters = nullptr;  // [units], zeros between launches
  float* parts = nullptr;             // [units][splits][rows][head_values + 2]
};
template <CacheType kType>
void launch_decode(const DecodeWork& work, const DecodePlan& plan, Stream& stream);

/// Many tokens: see attention_prefill.cuh. Heads likewise.
template <CacheType kType>
void launch_prefill(const AttentionWork& work, Stream& stream);

/// See attention_exact.cu. Heads of up to 256 values.
void exact_attention(const AttentionWork& work, CacheType type, Stream& stream);

}  // namespace imago::kernels::cuda
