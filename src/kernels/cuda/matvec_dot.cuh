#pragma once

// The arithmetic of a matvec: what one unit of weights adds to the sums of its row, for all tokens, and where that
// finds the activations. A way to multiply has
//   kTokens       how many at most
//   bytes         of shared memory that the activations of a row of `units` need; stride, scales_at: see MatVecArgs
//   fill          puts them there; all threads of a block
//   add           adds a unit of weights
//
// Activations in shared memory lie in the order in which a warp asks for them: piece p (16 bytes) of unit u at p ·
// stride + u, so that neighbouring lanes, which have neighbouring units, read neighbouring pieces.

#include <cstdint>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/matvec_unit.cuh"

namespace imago::kernels::cuda {

/// Room for `units` pieces, with a rest that keeps the writers of a unit's pieces on different banks.
template <int kPieces>
constexpr std::uint32_t stage_stride(std::uint32_t units) noexcept {
  return (units + 7) / 8 * 8 + (kPieces > 1 ? 8 / kPieces : 0);
}

/// What turns sums of codes into sums of weights: sum += scale · Σ code·x - shift · Σ x.
template <class Form>
struct GroupFactors {
  static constexpr int kParts = Form::Scales::kParts;
  static constexpr bool kShifts = Form::Scales::kHasMin || Form::Scales::kRow || Form::kZeroOfFormat != 0.0f;
  float scale[kParts], shift[kParts];

  __device__ __forceinline__ GroupFactors(const GroupScale& s, float zero) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      scale[part] = s.scale[part] * Form::kStep;
      shift[part] = s.min[part];  // a product with 0 would not be left out: it might be NaN
      if constexpr (Form::Scales::kRow) shift[part] += s.scale[part] * zero;
      if constexpr (Form::kZeroOfFormat != 0.0f) shift[part] += s.scale[part] * Form::kZeroOfFormat;
    }
  }
};

/// int8 activations; groups behind the last column are zeros.
template <class FormT, int kTokensT>
struct Int8Products {
  using Form = FormT;
  using Load = Unit<Form>;
  static constexpr int kTokens = kTokensT;
  static constexpr int kPieces = Load::kHalf ? 1 : 2 * Load::kGroups;
  static constexpr int kGroups = Load::kGroups;
  uint4* pieces;   // [tokens][kPieces][args.stride]
  float2* scales;  // [tokens][kGroups][args.stride]

  static std::uint32_t stride(std::uint32_t units) noexcept { return stage_stride<kPieces>(units); }
  static std::uint32_t scales_at(std::uint32_t units) noexcept { return kTokens * kPieces * 16 * stride(units); }
  static std::uint32_t bytes(std::uint32_t units) noexcept {
    return scales_at(units) + kTokens * kGroups * 8 * stride(units);
  }

  __device__ __forceinline__ Int8Products(const MatVecArgs& args, std::byte* memory)
      : pieces(reinterpret_cast<uint4*>(memory)), scales(reinterpret_cast<float2*>(memory + args.scales_at)) {}

  __device__ __forceinline__ void fill(const MatVecArgs& args, std::uint32_t groups, std::uint32_t units) const {
    for (int t = 0; t < kTokens; ++t) {
      const std::uint32_t token = min(static_cast<std::uint32_t>(t), args.tokens - 1);
      const uint4* q = reinterpret_cast<const uint4*>(args.q) + static_cast<std::size_t>(token) * groups * 2;
      for (std::uint32_t j = threadIdx.x; j < units * kPieces; j += blockDim.x) {
        const uint4 value = j < groups * 2 ? q[j] : uint4{0, 0, 0, 0};
        pieces[(t * kPieces + j % kPieces) * args.stride + j / kPieces] = value;
      }
      const float2* from = reinterpret_cast<const float2*>(args.scales) + static_cast<std::size_t>(token) * groups;
      const std::uint32_t count = Load::kHalf ? groups : units * kGroups;
      for (std::uint32_t j = threadIdx.x; j < count; j += blockDim.x) {
        scales[(t * kGroups + j % kGroups) * args.stride + j / kGroups] = j < groups ? from[j] : float2{0, 0};
      }
    }
  }

  __device__ __forceinline__ void add(const MatVecArgs& args, const Load& unit, std::uint32_t number, float zero,
                                      float (&sums)[kTokens]) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      std::uint32_t codes[Load::kWords];
      unit.words(i, codes);
      const GroupFactors<Form> factors(unit.scale(i), zero);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        std::uint32_t x[Load::kWords];
#pragma unroll
        for (int p = 0; p < Load::kWords / 4; ++p) {
          const uint4 v = pieces[(t * kPieces + i * 2 + p) * args.stride + number];
          x[4 * p] = v.x;
          x[4 * p + 1] = v.y;
          x[4 * p + 2] = v.z;
          x[4 * p + 3] = v.w;
        }
        const float2 s = scales[(t * kGroups + i) * args.stride + (Load::kHalf ? number / 2 : number)];
        sums[t] += product(codes, x, s, factors, Load::kHalf && number % 2 != 0);
      }
    }
  }

 private:
  static __device__ __forceinline__ float product(const std::uint32_t (&codes)[Load::kWords],
                                                  const std::uint32_t (&x)[Load::kWords], float2 s,
                                                  const GroupFactors<Form>& factors, bool second_half) {
    if constexpr (GroupFactors<Form>::kParts == 1) {
      std::int32_t dot = 0;
#pragma unroll
      for (int i = 0; i < Load::kWords; ++i) dot = dot4(codes[i], x[i], dot);
      const float result = factors.scale[0] * s.x * static_cast<float>(dot);
      // The sum of the whole group is there already; the lane with its first half subtracts it.
      const float sum = second_half ? 0.0f : s.y;
      return GroupFactors<Form>::kShifts ? result - factors.shift[0] * sum : result;
    } else {
      float result = 0;
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        std::int32_t dot = 0, sum = 0;
#pragma unroll
        for (int i = 4 * part; i < 4 * part + 4; ++i) {
          dot = dot4(codes[i], x[i], dot);
          if constexpr (GroupFactors<Form>::kShifts) sum = dot4(0x01010101u, x[i], sum);
        }
        result += factors.scale[part] * static_cast<float>(dot);
        if constexpr (GroupFactors<Form>::kShifts) result -= factors.shift[part] * static_cast<float>(sum);
      }
      return result * s.x;
    }
  }
};

/// float32 activations, read where they lie: exact products of coded forms, which need not be fast.
template <class FormT>
struct ExactProducts {
  using Form = FormT;
  using Load = Unit<Form>;
  static constexpr int kTokens = 1;
  static std::uint32_t stride(std::uint32_t) noexcept { return 0; }
  static std::uint32_t scales_at(std::uint32_t) noexcept { return 0; }
  static std::uint32_t bytes(std::uint32_t) noexcept { return 0; }
  __device__ __forceinline__ ExactProducts(const MatVecArgs&, std::byte*) {}
  __device__ __forceinline__ void fill(const MatVecArgs&, std::uint32_t, std::uint32_t) const {}

  __device__ __forceinline__ void add(const MatVecArgs& args, const Load& unit, std::uint32_t number, float zero,
                                      float (&sums)[1]) const {
    const std::uint32_t groups = args.products[0].planes.groups;
#pragma unroll
    for (int i = 0; i < Load::kGroups; ++i) {
      const std::uint32_t group = Load::kHalf ? number / 2 : number * Load::kGroups + i;
      if (group >= groups) continue;
      std::uint32_t codes[Load::kWords];
      unit.words(i, codes);
      const GroupFactors<Form> factors(unit.scale(i), zero);
      constexpr int kParts = GroupFactors<Form>::kParts, kPartWords = Load::kWords / kParts;
      const float4* from =
          reinterpret_cast<const float4*>(args.x) + group * 8 + (Load::kHalf && number % 2 != 0 ? 4 : 0);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        float dot = 0, plain = 0;
#pragma unroll
        for (int w = part * kPartWords; w < (part + 1) * kPartWords; ++w) {
          const float4 v = from[w];
          plain += (v.x + v.y) + (v.z + v.w);
          dot += code_as_float<typename Form::Codes>(codes + w, 0) * v.x;
          dot += code_as_float<typename Form::Codes>(codes + w, 1) * v.y;
          dot += code_as_float<typename Form::Codes>(codes + w, 2) * v.z;
          dot += code_as_float<typename Form::Codes>(codes + w, 3) * v.w;
        }
        sums[0] += factors.scale[part] * dot;
        if constexpr (GroupFactors<Form>::kShifts) sums[0] -= factors.shift[part] * plain;
      }
    }
  }
};

/// float32 activations for plain forms. kStaged: through shared memory, if they fit.
template <class T, int kTokensT, bool kStaged>
struct PlainProducts {
  using Form = Plain<T>;
  using Load = Unit<Form>;
  static constexpr int kTokens = kTokensT, kValues = Load::kValues;
  static constexpr int kStep = kValues < 4 ? kValues : 4;
  static constexpr int kPieces = kValues / kStep;
  float4* pieces;  // [tokens][kPieces][args.stride]

  static std::uint32_t stride(std::uint32_t units) noexcept { return stage_stride<kPieces>(units); }
  static std::uint32_t scales_at(std::uint32_t) noexcept { return 0; }
  static std::uint32_t bytes(std::uint32_t units) noexcept {
    return kStaged ? kTokens * stride(units) * kPieces * 16 : 0;
  }
  __device__ __forceinline__ PlainProducts(const MatVecArgs&, std::byte* memory)
      : pieces(reinterpret_cast<float4*>(memory)) {}

  __device__ __forceinline__ float4 load(const MatVecArgs& args, int t, std::uint32_t piece) const {
    const float* from = args.x + static_cast<std::size_t>(t) * args.x_stride + piece * kStep;
    if constexpr (kStep == 4) {
      return *reinterpret_cast<const float4*>(from);
    } else {
      const float2 two = *reinterpret_cast<const float2*>(from);
      return {two.x, two.y, 0, 0};
    }
  }
  __device__ __forceinline__ void fill(const MatVecArgs& args, std::uint32_t, std::uint32_t units) const {
    for (int t = 0; t < (kStaged ? kTokens : 0); ++t) {
      const int token = static_cast<int>(min(static_cast<std::uint32_t>(t), args.tokens - 1));
      for (std::uint32_t j = threadIdx.x; j < units * kPieces; j += blockDim.x) {
        pieces[(t * kPieces + j % kPieces) * args.stride + j / kPieces] = load(args, token, j);
      }
    }
  }
  __device__ __forceinline__ void add(const MatVecArgs& args, const Load& unit, std::uint32_t number, float row_scale,
                                      float (&sums)[kTokens]) const {
    float w[kValues];
    unit.values(w);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float dot = 0;
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
        const float4 v =
            kStaged ? pieces[(t * kPieces + p) * args.stride + number] : load(args, t, number * kPieces + p);
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < kStep; ++j) dot += w[p * kStep + j] * x[j];
      }
      sums[t] += dot * row_scale;
    }
  }
};

}  // namespace imago::kernels::cuda
