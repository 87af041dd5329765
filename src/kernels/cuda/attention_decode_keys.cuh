#pragma once

// What a warp of decoding attention does with 16 keys: scores, weights, sums of values. Keys and values are loaded into
// registers in the layout of the tensor cores, so nothing goes through shared memory and all loads of a pass are in
// flight at once.
//
// A tensor core tile has 16 rows of queries and decoding needs at most 8, so rows 8 to 15 hold what rounding to float16
// left of rows 0 to 7: the sum of both halves of the product is exact to 22 bits at no extra cost. Weights are split in
// the same way.

#include <cstdint>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/warp_ops.cuh"

namespace imago::kernels::cuda {

/// Weights are 2^(score - largest + boost): float16 represents them down to 2^-24, so weights of 2^-36 still count.
/// With q8_0 they are first multiplied by scales of up to 255.
template <CacheType kType>
inline constexpr float kWeightBoost = kType == CacheType::q8_0 ? 8.0f : 12.0f;

/// The queries and running sums of a warp. Lane = 4 · g + c.
template <int kSupers, CacheType kType>
struct DecodeState {
  static constexpr int kSteps = 2 * kSupers;  // of 32 values
  std::uint32_t q[kSteps][2][4];
  float factor;  // of products with q: undoes the scaling of q
  float largest = -INFINITY, total = 0;
  float sums[kSupers * 8][4] = {};
};

/// Values i · 32 + 8c … + 7 of the query in row g; zeros if there is none.
template <int kSteps>
__device__ __forceinline__ void load_query(float (&v)[kSteps][8], const float* q, bool inside, unsigned values,
                                           unsigned c) {
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const unsigned first = i * 32 + c * 8;
#pragma unroll
    for (int k = 0; k < 8; k += 4) {
      const float4 four =
          inside && first < values ? *reinterpret_cast<const float4*>(q + first + k) : float4{0, 0, 0, 0};
      v[i][k] = four.x, v[i][k + 1] = four.y, v[i][k + 2] = four.z, v[i][k + 3] = four.w;
    }
  }
}

template <int kSupers, CacheType kType>
__device__ __forceinline__ void set_query(DecodeState<kSupers, kType>& state, const float (&v)[2 * kSupers][8],
                                          float scale) {
  constexpr int kSteps = 2 * kSupers;
  std::uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) largest = max(largest, magnitude_bits(v[i][k]));
  }
  largest = max(largest, __shfl_xor_sync(~0u, largest, 1));
  largest = max(largest, __shfl_xor_sync(~0u, largest, 2));
  // A power of two brings the largest value near 1: float16 then neither overflows nor loses small values.
  const std::uint32_t exponent = min(max(largest >> 23, 1u), 253u);
  const float down = float_of_bits((254u - exponent) << 23);
  state.factor = float_of_bits(exponent << 23) * scale;
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Split s = split_halves(v[i][2 * k] * down, v[i][2 * k + 1] * down);
      state.q[i][k / 2][k % 2 * 2] = s.high;
      state.q[i][k / 2][k % 2 * 2 + 1] = s.low;
    }
  }
}

template <int kSupers, CacheType kType>
__device__ __forceinline__ void load_key(Octet<kType> (&octets)[2 * kSupers], const std::byte* row, bool inside,
                                         unsigned values, unsigned c) {
#pragma unroll
  for (int i = 0; i < 2 * kSupers; ++i) {
    octets[i] = load_octet<kType>(row, i * 32 + c * 8, inside && i * 32 + c * 8 < values);
  }
}

/// Scores of the keys 2c and 2c + 1 of 8, before scale and cap; `octets`, `row` and `inside` are those of key g.
template <int kSupers, CacheType kType>
__device__ __forceinline__ float2 score_keys(const DecodeState<kSupers, kType>& state,
                                             const Octet<kType> (&octets)[2 * kSupers], const std::byte* row,
                                             bool inside, unsigned values, unsigned c) {
  constexpr int kSteps = 2 * kSupers;
  if constexpr (kType == CacheType::q8_0) {
    float scales[kSteps];
#pragma unroll
    for (int i = 0; i < kSteps; ++i) scales[i] = q8_scale(row, i, inside && i * 32u < values);
    float2 score = {0, 0};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      float d[4] = {};
      multiply_add(d, state.q[i][0], octets[i].pairs.x, octets[i].pairs.y);
      multiply_add(d, state.q[i][1], octets[i].pairs.z, octets[i].pairs.w);
      score.x += (d[0] + d[2]) * __shfl_sync(~0u, scales[i], 8 * c);
      score.y += (d[1] + d[3]) * __shfl_sync(~0u, scales[i], 8 * c + 4);
    }
    return score;
  } else {
    float d[2][4] = {};  // two sums, since each product waits for the previous one of its sum
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      multiply_add(d[0], state.q[i][0], octets[i].pairs.x, octets[i].pairs.y);
      multiply_add(d[1], state.q[i][1], octets[i].pairs.z, octets[i].pairs.w);
      if constexpr (kType == CacheType::f32) {
        multiply_add(d[0], state.q[i][0], octets[i].rest.x, octets[i].rest.y);
        multiply_add(d[1], state.q[i][1], octets[i].rest.z, octets[i].rest.w);
      }
    }
    return {(d[0][0] + d[0][2]) + (d[1][0] + d[1][2]), (d[0][1] + d[0][3]) + (d[1][1] + d[1][3])};
  }
}

/// Adds weights · values for 64 values of 16 keys. The pairs of a column are values of two neighbouring keys.
__device__ __forceinline__ void add_pairs(float (*sums)[4], const std::uint32_t (&weights)[4], const uint4& k0,
                                          const uint4& k1, const uint4& k8, const uint4& k9) {
  const std::uint32_t w0[4] = {k0.x, k0.y, k0.z, k0.w}, w1[4] = {k1.x, k1.y, k1.z, k1.w};
  const std::uint32_t w8[4] = {k8.x, k8.y, k8.z, k8.w}, w9[4] = {k9.x, k9.y, k9.z, k9.w};
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    multiply_add(sums[2 * w], weights, __byte_perm(w0[w], w1[w], 0x5410), __byte_perm(w8[w], w9[w], 0x5410));
    multiply_add(sums[2 * w + 1], weights, __byte_perm(w0[w], w1[w], 0x7632), __byte_perm(w8[w], w9[w], 0x7632));
  }
}

/// The rows of the four keys whose values a lane holds, and whether they exist.
struct ValueRows {
  const std::byte* row[4];
  bool inside[4];
  template <class Window>
  __device__ __forceinline__ ValueRows(const std::byte* values, const Window& window, unsigned key, unsigned stop,
                                       unsigned c) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const unsigned at = key + 2 * c + k % 2 + k / 2 * 8;
      inside[k] = at < stop;
      row[k] = values + window.offset(at);
    }
  }
};

template <int kSupers, CacheType kType>
struct LoadedValues {
  Octet<kType> octets[kSupers][4];
  __device__ __forceinline__ void load(const ValueRows& rows, unsigned values, unsigned g) {
#pragma unroll
    for (int s = 0; s < kSupers; ++s) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const unsigned first = s * 64 + g * 8;
        octets[s][k] = load_octet<kType>(rows.row[k], first, rows.inside[k] && first < values);
      }
    }
  }
  __device__ __forceinline__ void add_to(float (*sums)[4], const std::uint32_t (&weights)[4]) const {
#pragma unroll
    for (int s = 0; s < kSupers; ++s) {
      const auto& o = octets[s];
      add_pairs(sums + 8 * s, weights, o[0].pairs, o[1].pairs, o[2].pairs, o[3].pairs);
      if constexpr (kType == CacheType::f32)
        add_pairs(sums + 8 * s, weights, o[0].rest, o[1].rest, o[2].rest, o[3].rest);
    }
  }
};

/// q8_0: a lane has four values of each block of 32, whose scale multiplies the weights.
template <int kSupers>
__device__ __forceinline__ void add_scaled_values(float (*sums)[4], const float (&p)[4], const ValueRows& rows,
                                                  unsigned values, unsigned g) {
  uint2 codes[2 * kSupers][4];
  float scales[2 * kSupers][4];
#pragma unroll
  for (int b = 0; b < 2 * kSupers; ++b) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const bool there = rows.inside[k] && b * 32u < values;
      scales[b][k] = q8_scale(rows.row[k], b, there);
      codes[b][k].x = there ? bytes_4(rows.row[k] + b * kQ8Bytes + 2 + g * 4) : 0u;
    }
  }
#pragma unroll
  for (int b = 0; b < 2 * kSupers; ++b) {
    const Split near = split_halves(p[0] * scales[b][0], p[1] * scales[b][1]);
    const Split far = split_halves(p[2] * scales[b][2], p[3] * scales[b][3]);
    const std::uint32_t weights[4] = {near.high, near.low, far.high, far.low};
    uint2 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = halves_of_codes(codes[b][k].x);
    float(*to)[4] = sums + 4 * b;
    multiply_add(to[0], weights, __byte_perm(v[0].x, v[1].x, 0x5410), __byte_perm(v[2].x, v[3].x, 0x5410));
    multiply_add(to[1], weights, __byte_perm(v[0].x, v[1].x, 0x7632), __byte_perm(v[2].x, v[3].x, 0x7632));
    multiply_add(to[2], weights, __byte_perm(v[0].y, v[1].y, 0x5410), __byte_perm(v[2].y, v[3].y, 0x5410));
    multiply_add(to[3], weights, __byte_perm(v[0].y, v[1].y, 0x7632), __byte_perm(v[2].y, v[3].y, 0x7632));
  }
}

/// The value of the head that column 2c + odd of sum `tile` stands for.
template <CacheType kType>
__device__ __forceinline__ unsigned value_of_sum(unsigned tile, unsigned c, unsigned odd) {
  if constexpr (kType == CacheType::q8_0) return tile / 4 * 32 + (2 * c + odd) * 4 + tile % 4;
  return tile / 8 * 64 + (2 * c + odd) * 8 + tile % 8;
}

/// Up to 128 values a head there are registers for the next 16 keys and values, which are then loaded while the current
/// ones are multiplied.
template <int kSupers, CacheType kType>
inline constexpr bool kLoadsAhead = kSupers <= 2 && kType == CacheType::f16;

/// The next 16 keys of a warp and their values, loaded ahead if kLoadsAhead.
template <int kSupers, CacheType kType>
struct KeysAhead {
  Octet<kType> keys[2][2 * kSupers];
  LoadedValues<kSupers, kType> values;

  template <class Window>
  __device__ __forceinline__ void load_keys(int t, const std::byte* rows, const Window& window, unsigned key,
                                            unsigned stop, unsigned head_values, unsigned g, unsigned c) {
    const unsigned at = key + 8 * t + g;
    load_key<kSupers, kType>(keys[t], rows + window.offset(at), at < stop, head_values, c);
  }
  /// Takes key number `last`, which was not in the cache yet, from float32.
  __device__ __forceinline__ void take_last(unsigned last, unsigned key, const float* its_key, const float* its_value,
                                            unsigned head_values, unsigned g, unsigned c) {
#pragma unroll
    for (unsigned t = 0; t < 2; ++t) {
      if (key + 8 * t + g != last) continue;
#pragma unroll
      for (unsigned i = 0; i < 2 * kSupers; ++i) {
        keys[t][i].pairs = halves_of(its_key + i * 32 + c * 8, i * 32 + c * 8 < head_values);
      }
    }
#pragma unroll
    for (unsigned k = 0; k < 4; ++k) {
      if (key + 2 * c + k % 2 + k / 2 * 8 != last) continue;
#pragma unroll
      for (unsigned s = 0; s < kSupers; ++s) {
        values.octets[s][k].pairs = halves_of(its_value + s * 64 + g * 8, s * 64 + g * 8 < head_values);
      }
    }
  }
};

/// The pages of the 16 keys from `key` on, as far as they come before `stop`.
template <bool kPaged>
__device__ __forceinline__ PageWindow<kPaged> window_of_keys(const CacheRows& rows, const std::uint32_t* pages,
                                                             unsigned key, unsigned stop) {
  const unsigned last = stop == 0 ? 0 : stop - 1;
  return {rows, pages, min(key, last), min(key + 15, last)};
}

/// Adds up to 16 keys of [key, stop) to the sums. With kLoadsAhead, `ahead` has them, and gets those from `next` on.
template <int kSupers, CacheType kType, bool kPaged>
__device__ __forceinline__ void attend_to_keys(const DecodeWork& a, DecodeState<kSupers, kType>& state,
                                               KeysAhead<kSupers, kType>& ahead, const std::byte* keys,
                                               const std::byte* values, const std::uint32_t* pages, unsigned key,
                                               unsigned next, unsigned stop, unsigned g, unsigned c) {
  const unsigned head_values = a.rows.head_values;
  constexpr bool kEarly = kLoadsAhead<kSupers, kType>;
  // Belongs to the keys that are loaded here: with kEarly the next ones.
  const auto window = window_of_keys<kPaged>(a.rows, pages, kEarly ? next : key, stop);
  const ValueRows rows(values, window, key, stop, c);

  float s[4];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    const unsigned at = key + 8 * t + g;
    const std::byte* const row = keys + window.offset(at);
    if constexpr (!kEarly) load_key<kSupers, kType>(ahead.keys[t], row, at < stop, head_values, c);
    const float2 pair = score_keys<kSupers, kType>(state, ahead.keys[t], row, at < stop, head_values, c);
    s[2 * t] = pair.x * state.factor, s[2 * t + 1] = pair.y * state.factor;
    if constexpr (kEarly) ahead.load_keys(t, keys, window, next, stop, head_values, g, c);
  }
  float top = -INFINITY;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (a.cap > 0) s[k] = a.cap * quick_tanh(s[k] / a.cap);
    s[k] = rows.inside[k] ? s[k] * 1.4426950409f : -INFINITY;  // as powers of 2
    top = fmaxf(top, s[k]);
  }
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
  top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
  const float largest = fmaxf(state.largest, top);  // finite: key < stop
  if (__any_sync(~0u, largest > state.largest)) {
    const float shrink = power_of_2(state.largest - largest);
    state.total *= shrink;
#pragma unroll
    for (int i = 0; i < kSupers * 8; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) state.sums[i][k] *= shrink;
    }
    state.largest = largest;
  }
  float p[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    p[k] = power_of_2(s[k] - (largest - kWeightBoost<kType>));
    state.total += p[k];
  }
  if constexpr (kType == CacheType::q8_0) {
    add_scaled_values<kSupers>(state.sums, p, rows, head_values, g);
  } else {
    if constexpr (!kEarly) ahead.values.load(rows, head_values, g);
    const Split near = split_halves(p[0], p[1]), far = split_halves(p[2], p[3]);
    const std::uint32_t weights[4] = {near.high, near.low, far.high, far.low};
    ahead.values.add_to(state.sums, weights);
    if constexpr (kEarly) ahead.values.load(ValueRows(values, window, next, stop, c), head_values, g);
  }
}

}  // namespace imago::kernels::cuda
