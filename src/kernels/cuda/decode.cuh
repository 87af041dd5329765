#pragma once

// The forms that packed weights take on the GPU. Several formats of files share one: whatever has four bits and one
// scale per row differs by a zero point only.
//
//   value = scale · (step · code - zero) - min
//
// with code, scale and min of kernels/cuda/codes.cuh and scales.cuh, for each half of a group its own where there are
// two. `step` is 1 but for binary (2) and fp4 (0.5, its levels are doubled). Formats of 8 bits and fewer are `coded`;
// wider ones and fp8 are `plain`: values in the order of the weights, times a row scale.

#include <cstdint>
#include <type_traits>

#include "imago/format.h"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/scale_tile.cuh"

namespace imago::kernels::cuda {

template <class CodesT, class ScalesT, int kZeroT = 0, int kStepHalves = 2>
struct Coded {
  using Codes = CodesT;
  using Scales = ScalesT;
  static constexpr bool kCoded = true;
  static constexpr float kStep = 0.5f * kStepHalves;
  static constexpr float kZeroOfFormat = kZeroT;  ///< of block formats; dtypes have theirs in Planes

  IMAGO_HD static float zero(const Planes& planes) noexcept { return Scales::kRow ? planes.zero : kZeroOfFormat; }
};

// tq1_0 is expanded to two bits: 2.0625 bits per weight, as tq2_0.
using CodedBinary = Coded<Codes1, ScaleRow, 0, 4>;
using CodedDType2 = Coded<Codes2, ScaleRow>;  // int2, uint2, ternary
using CodedDType4 = Coded<Codes4, ScaleRow>;  // int4, uint4
using CodedDType8 = Coded<Codes8, ScaleRow>;  // int8, uint8 less 128
using CodedFp4 = Coded<CodesTable<LevelsE2M1>, ScaleRow, 0, 1>;
using CodedEntity = Coded<Codes4, ScaleFloat, 8>;
using CodedQ4_0 = Coded<Codes4, ScaleHalf<false>, 8>;
using CodedQ4_1 = Coded<Codes4, ScaleHalf<true>>;
using CodedQ5_0 = Coded<Codes5, ScaleHalf<false>, 16>;
using CodedQ5_1 = Coded<Codes5, ScaleHalf<true>>;
using CodedQ8_0 = Coded<Codes8, ScaleHalf<false>>;
using CodedQ2_K = Coded<Codes2, ScaleHalvesMin>;
using CodedQ3_K = Coded<Codes3, ScaleSmallHalves, 4>;
using CodedQ4_K = Coded<Codes4, ScaleSubMin>;
using CodedQ5_K = Coded<Codes5, ScaleSubMin>;
using CodedQ6_K = Coded<Codes6, ScaleHalves, 32>;
using CodedIq4Nl = Coded<CodesTable<LevelsIq4>, ScaleHalf<false>>;
using CodedIq4Xs = Coded<CodesTable<LevelsIq4>, ScaleSub>;
using CodedTq2 = Coded<Codes2, ScaleSuper, 1>;
using CodedMxfp4 = Coded<CodesTable<LevelsE2M1>, ScaleExponent>;
using CodedNvfp4 = Coded<CodesTable<LevelsE2M1>, ScaleSmallFloat>;

/// `T` in the order of the weights; see numeric.h for what its codes mean.
template <class T>
struct Plain {
  using Value = T;
  static constexpr bool kCoded = false;
  static constexpr int kBytes = static_cast<int>(sizeof(T) * kGroup);
};

/// Calls `f(std::type_identity<Form>{})` with the form of `format`.
template <class F>
decltype(auto) visit_form(Format format, F&& f) {
  if (format.is_block()) {
    switch (format.block()) {
      case BlockFormat::q4_0: return f(std::type_identity<CodedQ4_0>{});
      case BlockFormat::q4_1: return f(std::type_identity<CodedQ4_1>{});
      case BlockFormat::q5_0: return f(std::type_identity<CodedQ5_0>{});
      case BlockFormat::q5_1: return f(std::type_identity<CodedQ5_1>{});
      case BlockFormat::q8_0: return f(std::type_identity<CodedQ8_0>{});
      case BlockFormat::q2_k: return f(std::type_identity<CodedQ2_K>{});
      case BlockFormat::q3_k: return f(std::type_identity<CodedQ3_K>{});
      case BlockFormat::q4_k: return f(std::type_identity<CodedQ4_K>{});
      case BlockFormat::q5_k: return f(std::type_identity<CodedQ5_K>{});
      case BlockFormat::q6_k: return f(std::type_identity<CodedQ6_K>{});
      case BlockFormat::iq4_nl: return f(std::type_identity<CodedIq4Nl>{});
      case BlockFormat::iq4_xs: return f(std::type_identity<CodedIq4Xs>{});
      case BlockFormat::tq1_0:
      case BlockFormat::tq2_0: return f(std::type_identity<CodedTq2>{});
      case BlockFormat::mxfp4: return f(std::type_identity<CodedMxfp4>{});
      case BlockFormat::nvfp4: return f(std::type_identity<CodedNvfp4>{});
      case BlockFormat::entity_q4_0: break;
    }
    return f(std::type_identity<CodedEntity>{});
  }
  switch (format.dtype()) {
    case DType::float64: return f(std::type_identity<Plain<double>>{});
    case DType::float32: return f(std::type_identity<Plain<float>>{});
    case DType::float16: return f(std::type_identity<Plain<Half>>{});
    case DType::bfloat16: return f(std::type_identity<Plain<BFloat16>>{});
    case DType::fp8e4m3: return f(std::type_identity<Plain<Fp8E4M3>>{});
    case DType::fp8e5m2: return f(std::type_identity<Plain<Fp8E5M2>>{});
    case DType::int64: return f(std::type_identity<Plain<std::int64_t>>{});
    case DType::int32: return f(std::type_identity<Plain<std::int32_t>>{});
    case DType::int16: return f(std::type_identity<Plain<std::int16_t>>{});
    case DType::uint64: return f(std::type_identity<Plain<std::uint64_t>>{});
    case DType::uint32: return f(std::type_identity<Plain<std::uint32_t>>{});
    case DType::uint16: return f(std::type_identity<Plain<std::uint16_t>>{});
    case DType::int8:
    case DType::uint8: return f(std::type_identity<CodedDType8>{});
    case DType::int4:
    case DType::uint4: return f(std::type_identity<CodedDType4>{});
    case DType::fp4: return f(std::type_identity<CodedFp4>{});
    case DType::int2:
    case DType::uint2:
    case DType::ternary: return f(std::type_identity<CodedDType2>{});
    case DType::binary: break;
  }
  return f(std::type_identity<CodedBinary>{});
}

// ---- one group, from memory of either side

/// What one thread loads for a group of a coded form.
template <class Form>
struct GroupBytes {
  std::uint32_t codes[Form::Codes::kBytes / 4];
  std::uint32_t high[Form::Codes::kHighBytes / 4 + 1];
  ScaleBits<typename Form::Scales> scales;
  float row_scale;
};

/// Plain loads, one word at a time: for kernels that are not in a hurry. The others load 16 bytes and more themselves.
template <class Form>
IMAGO_HD GroupBytes<Form> load_group(const Planes& p, std::size_t row, std::size_t group) noexcept {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  GroupBytes<Form> g{};
  const std::size_t at = row * p.stride + group;
  const std::uint32_t* codes = reinterpret_cast<const std::uint32_t*>(p.codes + at * Codes::kBytes);
  IMAGO_UNROLL
  for (int i = 0; i < Codes::kBytes / 4; ++i) g.codes[i] = codes[i];
  if constexpr (Codes::kHighBytes > 0) {
    const std::uint32_t* high = reinterpret_cast<const std::uint32_t*>(p.high + at * Codes::kHighBytes);
    IMAGO_UNROLL
    for (int i = 0; i < Codes::kHighBytes / 4; ++i) g.high[i] = high[i];
  }
  g.scales = load_scales<Scales>(p, ScaleTileRow(p.scale_tiles, static_cast<std::uint32_t>(row)),
                                 static_cast<std::uint32_t>(group));
  if constexpr (Scales::kRow) g.row_scale = p.row_scales[row * p.row_scale_count + (group >> p.scale_shift)];
  return g;
}

template <class Form>
IMAGO_HD GroupScale scales_of(const GroupBytes<Form>& g) noexcept {
  return Form::Scales::read(g.scales.group, g.scales.supers, g.row_scale);
}

/// Code i of the eight words that Codes::words gives.
template <class Codes>
IMAGO_HD float code_as_float(const std::uint32_t* words, int i) noexcept {
  if constexpr (Codes::kSigned) return static_cast<float>(signed_byte(words[i / 4], i % 4));
  return static_cast<float>(words[i / 4] >> 8 * (i % 4) & 0xFFu);
}

/// (i) The weights of a group in float32, bit for bit as the codecs of the host give them (but for the sign of zeros).
template <class Form>
IMAGO_HD void decode_floats(const GroupBytes<Form>& g, float zero, float* out) noexcept {
  std::uint32_t words[8];
  Form::Codes::words(g.codes, g.high, words);
  const GroupScale s = scales_of<Form>(g);
  IMAGO_UNROLL
  for (int i = 0; i < 32; ++i) {
    const int part = Form::Scales::kParts == 2 ? i / 16 : 0;
    const float code = code_as_float<typename Form::Codes>(words, i) * Form::kStep - zero;  // exact
    const float product = times(s.scale[part], code);
    out[i] = Form::Scales::kHasMin ? minus(product, s.min[part]) : product;
  }
}

// ---- pairs of 16-bit floats, for tensor cores

/// bfloat16: 0x43 in front of seven bits is 128 plus their value.
struct PairBfloat {
  static constexpr std::uint32_t kMagic = 0x43434343u;
  static constexpr int kMagicBits = 7;
  static constexpr float kBias = 128.0f;
  IMAGO_HD static std::uint32_t make(float low, float high) noexcept { return bfloat_pair(low, high); }
  /// a · b + c, rounded once.
  IMAGO_HD static std::uint32_t fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) noexcept {
#ifdef __CUDA_ARCH__
    std::uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    const auto value = [](std::uint32_t pair, int i) {
      return float_of_bfloat(static_cast<std::uint16_t>(pair >> 16 * i));
    };
    // Products of bfloat16 are exact in float32; the sum is rounded twice here, which moves ties only.
    return make(value(a, 0) * value(b, 0) + value(c, 0), value(a, 1) * value(b, 1) + value(c, 1));
#endif
  }
};

/// binary16: 0x64 in front of ten bits, of which codes use eight, is 1024 plus their value.
struct PairHalf {
  static constexpr std::uint32_t kMagic = 0x64646464u;
  static constexpr int kMagicBits = 8;
  static constexpr float kBias = 1024.0f;
  IMAGO_HD static std::uint32_t make(float low, float high) noexcept { return half_pair(low, high); }
  IMAGO_HD static std::uint32_t fma(std::uint32_t a, std::uint32_t b, std::uint32_t c) noexcept {
#ifdef __CUDA_ARCH__
    std::uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
#else
    const auto value = [](std::uint32_t pair, int i) {
      return float_of_half(static_cast<std::uint16_t>(pair >> 16 * i));
    };
    return make(value(a, 0) * value(b, 0) + value(c, 0), value(a, 1) * value(b, 1) + value(c, 1));
#endif
  }
};

/// (iii) The weights of a group as 16 pairs, weight 2i in the low half of out[i]. Scales are rounded to 16 bits before
/// they multiply the exact codes, so a weight is off by two roundings: 2^-8 of the largest product of its group in
/// bfloat16. binary16 is eight times closer, but its range may not hold the scales: the caller's choice.
template <class Pair, class Form>
IMAGO_HD void decode_pairs(const GroupBytes<Form>& g, float zero, std::uint32_t* out) noexcept {
  using Codes = typename Form::Codes;
  std::uint32_t words[8];
  Codes::words(g.codes, g.high, words);
  const GroupScale s = scales_of<Form>(g);
  if constexpr (Codes::kSigned && Pair::kMagicBits < 8) {
    // Eight bits do not fit behind the magic byte: by way of float32, where 0x4B0000 stands for 2^23.
    IMAGO_UNROLL
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t biased = words[i] ^ 0x80808080u;
      float v[4];
      IMAGO_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float code =
            float_of_bits(pick_bytes(biased, 0x4B000000u, 0x7440u + static_cast<std::uint32_t>(j))) - 8388736.0f;
        const int part = Form::Scales::kParts == 2 ? i / 4 : 0;
        v[j] = (code * Form::kStep - zero) * s.scale[part] - (Form::Scales::kHasMin ? s.min[part] : 0.0f);
      }
      out[2 * i] = Pair::make(v[0], v[1]);
      out[2 * i + 1] = Pair::make(v[2], v[3]);
    }
    return;
  }
  const float offset = Codes::kSigned ? 128.0f : 0.0f;
  const bool steps =
      Form::kStep != 1.0f;  // then zero is subtracted after the step: 2 · (128 + u) - 257 would be rounded
  const float shift = -(Pair::kBias + offset) - (steps ? 0.0f : zero);
  const std::uint32_t one = Pair::make(1.0f, 1.0f);
  const std::uint32_t bias = Pair::make(shift, shift);
  const std::uint32_t step = Pair::make(Form::kStep, Form::kStep);
  const std::uint32_t shifted_zero = Pair::make(-zero, -zero);
  IMAGO_UNROLL
  for (int part = 0; part < Form::Scales::kParts; ++part) {
    constexpr int kWords = 8 / Form::Scales::kParts;
    const std::uint32_t scale = Pair::make(s.scale[part], s.scale[part]);
    const std::uint32_t min = Form::Scales::kHasMin ? Pair::make(-s.min[part], -s.min[part]) : 0u;
    IMAGO_UNROLL
    for (int i = part * kWords; i < (part + 1) * kWords; ++i) {
      const std::uint32_t word = Codes::kSigned ? words[i] ^ 0x80808080u : words[i];
      IMAGO_UNROLL
      for (int j = 0; j < 2; ++j) {
        std::uint32_t pair = Pair::fma(pick_bytes(word, Pair::kMagic, j == 0 ? 0x4140u : 0x4342u), one, bias);
        if (steps) pair = Pair::fma(pair, step, shifted_zero);
        out[2 * i + j] = Pair::fma(pair, scale, min);
      }
    }
  }
}

// ---- plain values

IMAGO_HD float plain_float(double v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(float v) noexcept { return v; }
IMAGO_HD float plain_float(Half v) noexcept { return float_of_half(v.bits); }
IMAGO_HD float plain_float(BFloat16 v) noexcept { return float_of_bfloat(v.bits); }
IMAGO_HD float plain_float(std::int64_t v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(std::uint64_t v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(std::int32_t v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(std::uint32_t v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(std::int16_t v) noexcept { return static_cast<float>(v); }
IMAGO_HD float plain_float(std::uint16_t v) noexcept { return static_cast<float>(v); }
/// The five exponent bits of E5M2 are those of binary16.
IMAGO_HD float plain_float(Fp8E5M2 v) noexcept { return float_of_half(static_cast<std::uint16_t>(v.bits << 8)); }
/// E4M3 moved into place in binary16 is 2^-8 of its value; 0x7F is NaN.
IMAGO_HD float plain_float(Fp8E4M3 v) noexcept {
  const std::uint32_t code = v.bits;
  if ((code & 0x7Fu) == 0x7Fu) return float_of_bits(0x7FC00000u | (code & 0x80u) << 24);
  return float_of_half(static_cast<std::uint16_t>((code & 0x80u) << 8 | (code & 0x7Fu) << 7)) * 256.0f;
}

/// Weight `column` of a row, as the host's codec gives it.
template <class T>
IMAGO_HD float plain_weight(const Planes& p, std::size_t row, std::size_t column) noexcept {
  const T* values = reinterpret_cast<const T*>(p.codes) + (row * p.stride * kGroup + column);
  const float value = plain_float(*values);
  if (p.row_scales == nullptr) return value;
  return times(value, p.row_scales[row * p.row_scale_count + (column / kGroup >> p.scale_shift)]);
}

/// (i) for any form: the 32 weights of a group.
template <class Form>
IMAGO_HD void decode_group(const Planes& p, std::size_t row, std::size_t group, float* out) noexcept {
  if constexpr (Form::kCoded) {
    decode_floats<Form>(load_group<Form>(p, row, group), Form::zero(p), out);
  } else {
    for (std::size_t i = 0; i < kGroup; ++i) out[i] = plain_weight<typename Form::Value>(p, row, group * kGroup + i);
  }
}

}  // namespace imago::kernels::cuda
