#pragma once

// Where the lanes of a streaming matvec find the int8 form of their token: in device memory, or in shared memory, where
// the block has put it in the order in which lanes ask for it. The two groups of a lane are 64 bytes, and lanes that
// each load their own 64 bytes keep the first-level cache busy for longer than the way to the second level takes.
//
// A block can also make the form itself, of x or of its RMS norm: a kernel of its own costs as much as a small product.
// The factor of the norm is one number for all columns, so codes need not wait for it: it goes into the scales when
// they are read.

#include <cstdint>

#include "kernels/cuda/int8_form.cuh"
#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_stream_plan.h"
#include "kernels/cuda/reduce.cuh"

namespace imago::kernels::cuda {

/// In device memory. Pieces are of 16 bytes, half a group.
struct FormThere {
  const MatVecArgs& args;
  __device__ __forceinline__ uint4 piece(std::uint32_t i) const { return reinterpret_cast<const uint4*>(args.q)[i]; }
  __device__ __forceinline__ float scale(std::uint32_t group) const { return args.scales[group].x; }
};

/// In shared memory. A lane has kNeighbours pieces side by side; here those of 32 lanes lie side by side.
template <int kNeighbours>
class FormHere {
 public:
  __device__ __forceinline__ FormHere(std::byte* memory, std::uint32_t column_warps)
      : codes_(memory),
        scales_(reinterpret_cast<float*>(memory + column_warps * kStreamCodeBytes)),
        squares_(scales_ + column_warps * kStreamScales) {}

  __device__ __forceinline__ uint4& piece(std::uint32_t i) const { return *reinterpret_cast<uint4*>(codes_ + at(i)); }
  /// Four columns.
  __device__ __forceinline__ std::uint32_t& word(std::uint32_t i) const {
    return *reinterpret_cast<std::uint32_t*>(codes_ + at(i / 4) + i % 4 * 4);
  }
  __device__ __forceinline__ float& scale(std::uint32_t group) const { return scales_[group]; }
  /// Sums of squares, one of each warp.
  __device__ __forceinline__ float& squares(std::uint32_t warp) const { return squares_[warp]; }

 private:
  static constexpr std::uint32_t kLineBytes = 32 * 16 + 16;  // the rest keeps writers on different banks
  static_assert(kStreamCodeBytes == 128 / 32 * kLineBytes && kStreamScales == 128 / 2);
  static __device__ __forceinline__ std::uint32_t at(std::uint32_t i) {
    return (i / (32 * kNeighbours) * kNeighbours + i % kNeighbours) * kLineBytes + i / kNeighbours % 32 * 16;
  }

  std::byte* codes_;
  float* scales_;
  float* squares_;
};

/// Brings the form over; all threads of a block. It is there after the next barrier. Calls `meanwhile` when the first
/// pieces are asked for.
template <class Form, class Meanwhile>
__device__ __forceinline__ void bring_form(const MatVecArgs& args, const Form& form, Meanwhile meanwhile) {
  const FormThere there{args};
  const std::uint32_t groups = args.products[0].planes.groups, pieces = 2 * groups;
  // Scales by the last threads: often there are fewer pieces than threads.
  const std::uint32_t mirrored = blockDim.x - 1 - threadIdx.x;
  for (std::uint32_t first = threadIdx.x, round = 0; first - threadIdx.x < pieces; first += 2 * blockDim.x, ++round) {
    const std::uint32_t second = first + blockDim.x, group = mirrored + round * blockDim.x;
    uint4 piece[2] = {};
    float scale = 0;
    if (first < pieces) piece[0] = there.piece(first);
    if (second < pieces) piece[1] = there.piece(second);
    if (group < groups) scale = there.scale(group);
    if (round == 0) meanwhile();
    if (first < pieces) form.piece(first) = piece[0];
    if (second < pieces) form.piece(second) = piece[1];
    if (group < groups) form.scale(group) = scale;
  }
}

/// Makes the form. A thread takes every blockDim.x'th word of four columns.
class FormMaker {
 public:
  /// Weights of the norm do not depend on the kernel before: asked for while that one runs.
  __device__ __forceinline__ explicit FormMaker(const MatVecArgs& args)
      : args_(args), words_(args.products[0].planes.groups * 8) {
#pragma unroll
    for (int i = 0; i < kEarly; ++i) weights_[i] = weight(threadIdx.x + i * blockDim.x);
  }

  /// As bring_form.
  template <class Form, class Meanwhile>
  __device__ __forceinline__ void make(const Form& form, Meanwhile meanwhile) const {
    float squares = 0;
    squares += make_some(form, threadIdx.x, weights_, meanwhile);
    for (std::uint32_t first = kEarly * blockDim.x; first < words_; first += kEarly * blockDim.x) {
      float4 weights[kEarly];
#pragma unroll
      for (int i = 0; i < kEarly; ++i) weights[i] = weight(first + threadIdx.x + i * blockDim.x);
      squares += make_some(form, first + threadIdx.x, weights, [] {});
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) form.squares(threadIdx.x / 32) = squares;
  }

  /// What codes times scales are to be multiplied with; after the barrier.
  template <class Form>
  __device__ __forceinline__ float factor(const Form& form) const {
    if (args_.norm_weight == nullptr) return 1;
    float sum = 0;
    for (std::uint32_t warp = 0; warp < blockDim.x / 32; ++warp) sum += form.squares(warp);
    const float factor = 1.0f / sqrtf(sum / static_cast<float>(words_ * 4) + args_.norm_eps);
    return magnitude_bits(factor) < kInfinityBits ? factor : 0.0f;  // of what is not finite there are no codes
  }

 private:
  static constexpr int kEarly = 2;

  __device__ __forceinline__ float4 weight(std::uint32_t i) const {
    return args_.norm_weight != nullptr && i < words_ ? reinterpret_cast<const float4*>(args_.norm_weight)[i]
                                                      : float4{1, 1, 1, 1};
  }
  template <int kCount, class Form, class Meanwhile>
  __device__ __forceinline__ float make_some(const Form& form, std::uint32_t first, const float4 (&weights)[kCount],
                                             Meanwhile meanwhile) const {
    float4 x[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t word = first + i * blockDim.x;
      x[i] = word < words_ ? reinterpret_cast<const float4*>(args_.x)[word] : float4{0, 0, 0, 0};
    }
    meanwhile();
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const std::uint32_t word = first + i * blockDim.x;
      squares += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
      const float values[4] = {x[i].x * weights[i].x, x[i].y * weights[i].y, x[i].z * weights[i].z,
                               x[i].w * weights[i].w};
      alignas(4) std::int8_t codes[4];
      const float scale = int8_codes(values, codes).scale;
      if (word >= words_) continue;
      form.word(word) = *reinterpret_cast<const std::uint32_t*>(codes);
      if (word % 8 == 0) form.scale(word / 8) = scale;
    }
    return squares;
  }

  const MatVecArgs& args_;
  std::uint32_t words_;
  float4 weights_[kEarly];
};

}  // namespace imago::kernels::cuda
