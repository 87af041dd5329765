#pragma once

// The forms that packed weights take on the GPU. Several formats of files share one: whatever has four bits and one
// scale per row differs by a zero point only.
//
//   value = scale · (step · code - zero) - min
//
// with code, scale and min of kernels/cuda/codes.cuh and scales.cuh, for each half of a group its own where there are
// two. `step` is 1 but for binary (2), fp4 (0.5, its levels are doubled) and formats with codebooks, whose scales are
// multiples of a fourth or an eighth. Formats of 8 bits and fewer are `coded`;
// wider ones and fp8 are `plain`: values in the order of the weights, times a row scale.

#include <cstdint>
#include <type_traits>

#include "imago/format.h"
#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/layout.h"
#include "kernels/cuda/scale_tile.cuh"
#include "quant/blocks.h"

namespace imago::kernels::cuda {

template <class CodesT, class ScalesT, int kZeroT = 0, int kStepEighths = 8>
struct Coded {
  using Codes = CodesT;
  using Scales = ScalesT;
  static constexpr bool kCoded = true;
  static constexpr float kStep = 0.125f * kStepEighths;
  static constexpr float kZeroOfFormat = kZeroT;  ///< of block formats; dtypes have theirs in Planes

  IMAGO_HD static float zero(const Planes& planes) noexcept { return Scales::kRow ? planes.zero : kZeroOfFormat; }
};

/// Codes of kBits bits that are numbers, or numbers of levels in a table.
template <int kBits, class Levels>
constexpr auto codes_of() noexcept {
  if constexpr (Levels::kIsTable) {
    static_assert(kBits == 3 || kBits == 4);
    return std::conditional_t<kBits == 3, CodesOfEight<Levels>, CodesTable<Levels>>{};
  } else if constexpr (kBits <= 2) {
    // Four groups of one-bit codes would be loaded together, with more bytes of scales than one word holds.
    return Codes2{};
  } else if constexpr (kBits == 3) {
    return Codes3{};
  } else if constexpr (kBits == 4) {
    return Codes4{};
  } else if constexpr (kBits == 5) {
    return Codes5{};
  } else if constexpr (kBits == 6) {
    return Codes6{};
  } else {
    static_assert(kBits == 8);
    return Codes8{};
  }
}

/// What is subtracted from codes: Codes8 are signed, and numbers of levels are looked up.
template <class Block>
constexpr int zero_of() noexcept {
  if constexpr (Block::Levels::kIsTable || Block::kBits == 8) {
    return 0;
  } else {
    return Block::Levels::kZero;
  }
}

/// The small integers of a format under the scales of its super-block. Those of six bits leave room for them.
template <class Block>
constexpr auto sub_scales_of() noexcept {
  constexpr bool kHalves = Block::kGroup == 16;
  static_assert(Block::kValues == 256 && (kHalves || Block::kGroup == 32) && Block::kSignedSubs != Block::kHasOffset);
  if constexpr (Block::kHasOffset) {
    static_assert(Block::kSubBits == (kHalves ? 4 : 6));
    return std::conditional_t<kHalves, ScaleHalvesMin, ScaleSubMin>{};
  } else if constexpr (Block::kSubBits == 8) {
    static_assert(kHalves);
    return ScaleHalves{};
  } else {
    static_assert(Block::kSubBits == 6);
    return std::conditional_t<kHalves, ScaleSmallHalves, ScaleSub>{};
  }
}

template <class Block>
constexpr auto scales_of() noexcept {
  using quant::ScaleKind;
  if constexpr (Block::kScales == ScaleKind::half) {
    static_assert(Block::kGroup <= 128 || (Block::kGroup == 256 && !Block::kHasOffset));
    return std::conditional_t<Block::kGroup <= 128, ScaleHalf<Block::kHasOffset>, ScaleSuper>{};
  } else if constexpr (Block::kScales == ScaleKind::single) {
    static_assert(Block::kGroup == 32);
    return ScaleFloat{};
  } else if constexpr (Block::kScales == ScaleKind::exponent) {
    static_assert(Block::kGroup == 32);
    return ScaleExponent{};
  } else if constexpr (Block::kScales == ScaleKind::small_float) {
    static_assert(Block::kGroup == 16);
    return ScaleSmallFloat{};
  } else {
    return sub_scales_of<Block>();
  }
}

/// The device layout of a block format, from its description. tq1_0 and q1_0 are expanded to two bits, as tq2_0 and
/// q2_0 have them.
template <class Block>
using CodedOf = Coded<decltype(codes_of<Block::kBits, typename Block::Levels>()), decltype(scales_of<Block>()),
                      zero_of<Block>(), (8 >> -quant::kUnitExponentOf<Block>)>;

using CodedBinary = Coded<Codes1, ScaleRow, 0, 16>;
using CodedDType2 = Coded<Codes2, ScaleRow>;  // int2, uint2, ternary
using CodedDType4 = Coded<Codes4, ScaleRow>;  // int4, uint4
using CodedDType8 = Coded<Codes8, ScaleRow>;  // int8, uint8 less 128
using CodedFp4 = Coded<CodesTable<quant::E2M1Levels>, ScaleRow, 0, 4>;
using CodedEntity = CodedOf<quant::EntityQ4_0>;
using CodedQ4_0 = CodedOf<quant::Q4_0>;
using CodedQ4_1 = CodedOf<quant::Q4_1>;
using CodedQ5_0 = CodedOf<quant::Q5_0>;
using CodedQ5_1 = CodedOf<quant::Q5_1>;
using CodedQ8_0 = CodedOf<quant::Q8_0>;
using CodedQ2_K = CodedOf<quant::Q2_K>;
using CodedQ3_K = CodedOf<quant::Q3_K>;
using CodedQ4_K = CodedOf<quant::Q4_K>;
using CodedQ5_K = CodedOf<quant::Q5_K>;
using CodedQ6_K = CodedOf<quant::Q6_K>;
using CodedIq4Nl = CodedOf<quant::IQ4_NL>;
using CodedIq4Xs = CodedOf<quant::IQ4_XS>;
using CodedTq2 = CodedOf<quant::TQ2_0>;
using CodedMxfp4 = CodedOf<quant::MXFP4>;
using CodedNvfp4 = CodedOf<quant::NVFP4>;
using CodedIq1S = CodedOf<quant::IQ1_S>;
using CodedIq1M = CodedOf<quant::IQ1_M>;
using CodedIq2Xxs = CodedOf<quant::IQ2_XXS>;
using CodedIq2S = CodedOf<quant::IQ2_S>;  // iq2_xs, too
using CodedIq3Xxs = CodedOf<quant::IQ3_XXS>;
using CodedIq3S = CodedOf<quant::IQ3_S>;
using CodedQ2_0 = CodedOf<quant::Q2_0>;

/// `T` in the order of the weights; see numeric.h for what its codes mean.
template <class T>
struct Plain {
  using Value = T;
  static constexpr bool kCoded = false;
  static constexpr int kBytes = static_cast<int>(sizeof(T) * kGroup);
};

/// The device layout of a dtype.
template <Numeric T>
constexpr auto dtype_layout() noexcept {
  constexpr DTypeInfo type = info(dtype_of<T>);
  if constexpr (type.kind == NumberKind::wide_float || type.bits > 8) {
    return Plain<T>{};
  } else if constexpr (type.kind == NumberKind::narrow_float) {
    return std::conditional_t<type.bits == 8, Plain<T>, CodedFp4>{};
  } else if constexpr (type.bits == 8) {
    return CodedDType8{};
  } else if constexpr (type.bits == 4) {
    return CodedDType4{};
  } else {
    return std::conditional_t<type.bits == 2, CodedDType2, CodedBinary>{};
  }
}
template <Numeric T>
using DTypeLayout = decltype(dtype_layout<T>());

/// Calls `f(std::type_identity<Form>{})` with the form of `format`.
template <class F>
decltype(auto) visit_form(Format format, F&& f) {
  return quant::visit(format, [&]<class T>(std::type_identity<T>) -> decltype(auto) {
    if constexpr (!Numeric<T>) {
      return f(std::type_identity<CodedOf<T>>{});
    } else {
      return f(std::type_identity<DTypeLayout<T>>{});
    }
  });
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
    // Eight bits do not fit beside the magic byte: by way of float32, where 0x4B0000 stands for 2^23.
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
