#pragma once

// What a lane of a matvec multiplies at a time: a *code vector*, 16 bytes of codes; its neighbour has the next 16. That
// is half a group of 8-bit codes, a group of 4-bit codes, two groups of 2-bit and four of 1-bit codes, with their
// scales; or up to sixteen plain values.
//
// The second part multiplies a code vector with the activations of all tokens. Each way to multiply has
//   kTokens  how many tokens at most
//   bytes    of shared memory that the activations of a row of `vectors` need; stride, scales_at: see MatVecArgs
//   fill     copies them there; all threads of a block call it
//   add      adds the products of a code vector to the sums
// Activations lie in shared memory in the order in which a warp reads them: the p-th 16 bytes for code vector v at
// p · stride + v, so that neighbouring lanes read neighbouring addresses.

#include <cstdint>

#include "kernels/cuda/decode.cuh"
#include "kernels/cuda/matvec.h"

namespace imago::kernels::cuda {

/// A vector of a coded layout.
template <class Form>
struct CodeVector {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  static constexpr bool kHalf = Codes::kBytes == 32;              ///< the vector is half a group
  static constexpr int kGroups = kHalf ? 1 : 16 / Codes::kBytes;  ///< of the vector; 1 if it is half a group
  static constexpr int kWords = kHalf ? 4 : 8;                    ///< of four codes, in a group

  std::uint32_t codes[4];
  std::uint32_t high[kGroups * Codes::kHighBytes / 4 + 1];
  std::uint32_t scales, supers[Scales::kSuperWords];
  float row_scales[kGroups];

  static constexpr std::uint32_t count(std::uint32_t groups) noexcept {
    return kHalf ? groups * 2 : (groups + kGroups - 1) / kGroups;
  }
  /// Codes of group i of the vector.
  __device__ __forceinline__ void words(int i, std::uint32_t (&out)[kWords]) const {
    if constexpr (kHalf) {
#pragma unroll
      for (int w = 0; w < 4; ++w) out[w] = codes[w];
    } else {
      Codes::words(codes + i * Codes::kBytes / 4, high + i * Codes::kHighBytes / 4, out);
    }
  }
  __device__ __forceinline__ GroupScale scale(int i) const {
    const std::uint32_t own = Scales::kBytes > 0 ? scales >> 8 * Scales::kBytes * i : 0;
    return Scales::read(own, supers, Scales::kRow ? row_scales[i] : 0.0f);
  }
};

/// fp8 codes 2i and 2i + 1 of a word as two binary16, where an instruction exists.
template <class T>
struct Fp8Pairs {
  static constexpr bool kExist = false;
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
template <>
struct Fp8Pairs<Fp8E4M3> {
  static constexpr bool kExist = true;
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word, int i) {
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(word >> 16 * i)));
    return halves;
  }
};
#endif
template <>
struct Fp8Pairs<Fp8E5M2> {
  static constexpr bool kExist = true;
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word, int i) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    std::uint32_t halves;
    asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(static_cast<std::uint16_t>(word >> 16 * i)));
    return halves;
#else
    return pick_bytes(word, 0, i == 0 ? 0x1404u : 0x3424u);  // the upper bytes of binary16
#endif
  }
};

/// A vector of plain values.
template <class T>
struct CodeVector<Plain<T>> {
  static constexpr int kValues = static_cast<int>(16 / sizeof(T));
  uint4 bytes;

  static constexpr std::uint32_t count(std::uint32_t groups) noexcept { return groups * (kGroup / kValues); }

  __device__ __forceinline__ void values(float (&out)[kValues]) const {
    const std::uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    if constexpr (std::is_same_v<T, Half>) {
#pragma unroll
      for (int i = 0; i < 4; ++i) floats_of_halves(words[i], out[2 * i], out[2 * i + 1]);
    } else if constexpr (Fp8Pairs<T>::kExist) {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        floats_of_halves(Fp8Pairs<T>::halves(words[i / 2], i % 2), out[2 * i], out[2 * i + 1]);
    } else {
      T codes[kValues];
      memcpy(codes, &bytes, 16);
#pragma unroll
      for (int i = 0; i < kValues; ++i) out[i] = plain_float(codes[i]);
    }
  }
};

/// Bytes of a group in Planes::codes.
template <class Form>
constexpr int code_bytes() noexcept {
  if constexpr (Form::kCoded) {
    return Form::Codes::kBytes;
  } else {
    return Form::kBytes;
  }
}

// ---- products with activations

/// Stride of `vectors` entries, padded so that threads which write the activations of one code vector use different
/// banks.
template <int kXVectors>
constexpr std::uint32_t x_stride_of(std::uint32_t vectors) noexcept {
  return (vectors + 7) / 8 * 8 + (kXVectors > 1 ? 8 / kXVectors : 0);
}

/// Turns sums of codes into sums of weights: sum += scale · Σ code·x - shift · Σ x.
template <class Form>
struct GroupFactors {
  static constexpr int kHalves = Form::Scales::kParts;
  static constexpr bool kShifts = Form::Scales::kHasMin || Form::Scales::kRow || Form::kZeroOfFormat != 0.0f;
  float scale[kHalves], shift[kHalves];

  __device__ __forceinline__ GroupFactors(const GroupScale& s, float zero) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      scale[half] = s.scale[half] * Form::kStep;
      shift[half] = s.min[half];  // adding 0 · zero would cost an instruction, since it might be NaN
      if constexpr (Form::Scales::kRow) shift[half] += s.scale[half] * zero;
      if constexpr (Form::kZeroOfFormat != 0.0f) shift[half] += s.scale[half] * Form::kZeroOfFormat;
    }
  }
};

/// A group, or the half of one, times quantized activations, of which `s` has the scale and the sum.
template <class Form, int kWords>
__device__ __forceinline__ float int8_product(const std::uint32_t (&codes)[kWords], const std::uint32_t (&x)[kWords],
                                              float2 s, const GroupFactors<Form>& factors, bool second_half) {
  if constexpr (GroupFactors<Form>::kHalves == 1) {
    std::int32_t dot = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) dot = dot4(codes[i], x[i], dot);
    const float result = factors.scale[0] * s.x * static_cast<float>(dot);
    // s.y is the sum of the whole group; the lane with the first half subtracts it.
    const float sum = second_half ? 0.0f : s.y;
    return GroupFactors<Form>::kShifts ? result - factors.shift[0] * sum : result;
  } else {
    float result = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::int32_t dot = 0, sum = 0;
#pragma unroll
      for (int i = 4 * half; i < 4 * half + 4; ++i) {
        dot = dot4(codes[i], x[i], dot);
        if constexpr (GroupFactors<Form>::kShifts) sum = dot4(0x01010101u, x[i], sum);
      }
      result += factors.scale[half] * static_cast<float>(dot);
      if constexpr (GroupFactors<Form>::kShifts) result -= factors.shift[half] * static_cast<float>(sum);
    }
    return result * s.x;
  }
}

/// Quantized activations; groups after the last column are zeros.
template <class FormT, int kTokensT>
struct Int8Products {
  using Form = FormT;
  using Vector = CodeVector<Form>;
  static constexpr int kTokens = kTokensT;
  static constexpr int kXVectors = Vector::kHalf ? 1 : 2 * Vector::kGroups;
  static constexpr int kGroups = Vector::kGroups;
  uint4* x_vectors;  // [tokens][kXVectors][args.stride]
  float2* scales;    // [tokens][kGroups][args.stride]

  static std::uint32_t stride(std::uint32_t vectors) noexcept { return x_stride_of<kXVectors>(vectors); }
  static std::uint32_t scales_at(std::uint32_t vectors) noexcept { return kTokens * kXVectors * 16 * stride(vectors); }
  static std::uint32_t bytes(std::uint32_t vectors) noexcept {
    return scales_at(vectors) + kTokens * kGroups * 8 * stride(vectors);
  }

  __device__ __forceinline__ Int8Products(const MatVecArgs& args, std::byte* memory)
      : x_vectors(reinterpret_cast<uint4*>(memory)), scales(reinterpret_cast<float2*>(memory + args.scales_at)) {}

  __device__ __forceinline__ void fill(const MatVecArgs& args, std::uint32_t groups, std::uint32_t vectors) const {
    for (int t = 0; t < kTokens; ++t) {
      const std::uint32_t token = min(static_cast<std::uint32_t>(t), args.tokens - 1);
      const uint4* q = reinterpret_cast<const uint4*>(args.q) + static_cast<std::size_t>(token) * groups * 2;
      for (std::uint32_t j = threadIdx.x; j < vectors * kXVectors; j += blockDim.x) {
        const uint4 value = j < groups * 2 ? q[j] : uint4{0, 0, 0, 0};
        x_vectors[(t * kXVectors + j % kXVectors) * args.stride + j / kXVectors] = value;
      }
      const float2* from = reinterpret_cast<const float2*>(args.scales) + static_cast<std::size_t>(token) * groups;
      const std::uint32_t count = Vector::kHalf ? groups : vectors * kGroups;
      for (std::uint32_t j = threadIdx.x; j < count; j += blockDim.x) {
        scales[(t * kGroups + j % kGroups) * args.stride + j / kGroups] = j < groups ? from[j] : float2{0, 0};
      }
    }
  }

  __device__ __forceinline__ void add(const MatVecArgs& args, const Vector& vector, std::uint32_t number, float zero,
                                      float (&sums)[kTokens]) const {
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      std::uint32_t codes[Vector::kWords];
      vector.words(i, codes);
      const GroupFactors<Form> factors(vector.scale(i), zero);
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        std::uint32_t x[Vector::kWords];
#pragma unroll
        for (int p = 0; p < Vector::kWords / 4; ++p) {
          const uint4 v = x_vectors[(t * kXVectors + i * 2 + p) * args.stride + number];
          x[4 * p] = v.x;
          x[4 * p + 1] = v.y;
          x[4 * p + 2] = v.z;
          x[4 * p + 3] = v.w;
        }
        const float2 s = scales[(t * kGroups + i) * args.stride + (Vector::kHalf ? number / 2 : number)];
        sums[t] += int8_product(codes, x, s, factors, Vector::kHalf && number % 2 != 0);
      }
    }
  }
};

/// float32 activations, read from device memory: exact products of coded layouts, which need not be fast.
template <class FormT>
struct ExactProducts {
  using Form = FormT;
  using Vector = CodeVector<Form>;
  static constexpr int kTokens = 1;
  static std::uint32_t stride(std::uint32_t) noexcept { return 0; }
  static std::uint32_t scales_at(std::uint32_t) noexcept { return 0; }
  static std::uint32_t bytes(std::uint32_t) noexcept { return 0; }
  __device__ __forceinline__ ExactProducts(const MatVecArgs&, std::byte*) {}
  __device__ __forceinline__ void fill(const MatVecArgs&, std::uint32_t, std::uint32_t) const {}

  __device__ __forceinline__ void add(const MatVecArgs& args, const Vector& vector, std::uint32_t number, float zero,
                                      float (&sums)[1]) const {
    const std::uint32_t groups = args.products[0].planes.groups;
#pragma unroll
    for (int i = 0; i < Vector::kGroups; ++i) {
      const std::uint32_t group = Vector::kHalf ? number / 2 : number * Vector::kGroups + i;
      if (group >= groups) continue;
      std::uint32_t codes[Vector::kWords];
      vector.words(i, codes);
      const GroupFactors<Form> factors(vector.scale(i), zero);
      constexpr int kHalves = GroupFactors<Form>::kHalves, kHalfWords = Vector::kWords / kHalves;
      const float4* from =
          reinterpret_cast<const float4*>(args.x) + group * 8 + (Vector::kHalf && number % 2 != 0 ? 4 : 0);
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        float dot = 0, plain = 0;
#pragma unroll
        for (int w = half * kHalfWords; w < (half + 1) * kHalfWords; ++w) {
          const float4 v = from[w];
          plain += (v.x + v.y) + (v.z + v.w);
          dot += code_as_float<typename Form::Codes>(codes + w, 0) * v.x;
          dot += code_as_float<typename Form::Codes>(codes + w, 1) * v.y;
          dot += code_as_float<typename Form::Codes>(codes + w, 2) * v.z;
          dot += code_as_float<typename Form::Codes>(codes + w, 3) * v.w;
        }
        sums[0] += factors.scale[half] * dot;
        if constexpr (GroupFactors<Form>::kShifts) sums[0] -= factors.shift[half] * plain;
      }
    }
  }
};

/// float32 activations for plain values. kStaged: they fit in shared memory.
template <class T, int kTokensT, bool kStaged>
struct PlainProducts {
  using Form = Plain<T>;
  using Vector = CodeVector<Form>;
  static constexpr int kTokens = kTokensT, kValues = Vector::kValues;
  static constexpr int kStep = kValues < 4 ? kValues : 4;
  static constexpr int kXVectors = kValues / kStep;
  float4* x_vectors;  // [tokens][kXVectors][args.stride]

  static std::uint32_t stride(std::uint32_t vectors) noexcept { return x_stride_of<kXVectors>(vectors); }
  static std::uint32_t scales_at(std::uint32_t) noexcept { return 0; }
  static std::uint32_t bytes(std::uint32_t vectors) noexcept {
    return kStaged ? kTokens * stride(vectors) * kXVectors * 16 : 0;
  }
  __device__ __forceinline__ PlainProducts(const MatVecArgs&, std::byte* memory)
      : x_vectors(reinterpret_cast<float4*>(memory)) {}

  __device__ __forceinline__ float4 load(const MatVecArgs& args, int t, std::uint32_t x_vector) const {
    const float* from = args.x + static_cast<std::size_t>(t) * args.x_stride + x_vector * kStep;
    if constexpr (kStep == 4) {
      return *reinterpret_cast<const float4*>(from);
    } else {
      const float2 two = *reinterpret_cast<const float2*>(from);
      return {two.x, two.y, 0, 0};
    }
  }
  __device__ __forceinline__ void fill(const MatVecArgs& args, std::uint32_t, std::uint32_t vectors) const {
    for (int t = 0; t < (kStaged ? kTokens : 0); ++t) {
      const int token = static_cast<int>(min(static_cast<std::uint32_t>(t), args.tokens - 1));
      for (std::uint32_t j = threadIdx.x; j < vectors * kXVectors; j += blockDim.x) {
        x_vectors[(t * kXVectors + j % kXVectors) * args.stride + j / kXVectors] = load(args, token, j);
      }
    }
  }
  __device__ __forceinline__ void add(const MatVecArgs& args, const Vector& vector, std::uint32_t number,
                                      float row_scale, float (&sums)[kTokens]) const {
    float w[kValues];
    vector.values(w);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      float dot = 0;
#pragma unroll
      for (int p = 0; p < kXVectors; ++p) {
        const float4 v =
            kStaged ? x_vectors[(t * kXVectors + p) * args.stride + number] : load(args, t, number * kXVectors + p);
        const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < kStep; ++j) dot += w[p * kStep + j] * x[j];
      }
      sums[t] += dot * row_scale;
    }
  }
};

}  // namespace imago::kernels::cuda
