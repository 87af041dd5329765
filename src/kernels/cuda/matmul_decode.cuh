#pragma once

// Decodes a group of 32 packed weights for tensor cores: 16 pairs of bfloat16. Loading and decoding are separate, so
// that the codes of the next chunk are loaded while those of the current one are multiplied.

#include "kernels/cuda/decode.cuh"

namespace imago::kernels::cuda {

/// Signed bytes · `scale` + `shift`. After 0x43, the low seven bits of a byte mean 128 plus their value, and the top
/// bit alone means 128 or 256: their difference is the signed byte, exactly.
__device__ __forceinline__ void signed_pairs(const std::uint32_t (&words)[8], int part_words,
                                             const std::uint32_t (&scale)[2], std::uint32_t shift,
                                             std::uint32_t (&out)[16]) {
  const std::uint32_t minus_one = PairBfloat::make(-1.0f, -1.0f);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    const std::uint32_t pair = pick_bytes(words[i / 2], PairBfloat::kMagic, i % 2 == 0 ? 0x4140u : 0x4342u);
    const std::uint32_t code = PairBfloat::fma(pair & 0xFF80FF80u, minus_one, pair & 0xFF7FFF7Fu);
    out[i] = PairBfloat::fma(code, scale[i / 2 / part_words], shift);
  }
}

/// Where a thread reads in a row: the index of a group, counted from the first row, and of the row's first scale.
struct RowCursor {
  std::uint32_t at, scale_at;
  ScaleTileRow scale_tiles;
  __device__ __forceinline__ RowCursor(const Planes& p, std::uint32_t row, std::uint32_t group)
      : at(row * p.stride + group), scale_at(row * p.row_scale_count), scale_tiles(p.scale_tiles, row) {}
};

/// A chunk may reach past the last scale of a row.
__device__ __forceinline__ float load_row_scale(const Planes& p, const RowCursor& row, std::uint32_t group) {
  return __ldg(p.row_scales + row.scale_at + min(group >> p.scale_shift, p.row_scale_count - 1));
}

template <class Form>
struct TensorDecoder {
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  using Raw = GroupBytes<Form>;

  /// Loads the group `ahead` groups after the cursor, which is number `group` of its row.
  __device__ static __forceinline__ Raw load(const Planes& p, const RowCursor& row, std::uint32_t ahead,
                                             std::uint32_t group) {
    Raw raw;
    const std::size_t at = row.at + ahead;
    load_words<Codes::kBytes / 4>(raw.codes, p.codes + at * Codes::kBytes);
    load_words<Codes::kHighBytes / 4>(raw.high, p.high + at * Codes::kHighBytes);
    raw.scales = load_scales<Scales>(p, row.scale_tiles, group);
    if constexpr (Scales::kRow) raw.row_scale = load_row_scale(p, row, group);
    return raw;
  }

  __device__ static __forceinline__ void decode(const Planes& p, const Raw& raw, std::uint32_t (&out)[16]) {
    if constexpr (Codes::kSigned) {
      std::uint32_t words[8];
      Codes::words(raw.codes, raw.high, words);
      const GroupScale s = scales_of<Form>(raw);
      const auto twice = [](float f) { return PairBfloat::make(f, f); };
      constexpr int kLast = Scales::kParts - 1;
      const std::uint32_t scale[2] = {twice(s.scale[0] * Form::kStep), twice(s.scale[kLast] * Form::kStep)};
      // zero is 0 or a power of two, so this is not rounded further
      const std::uint32_t shift = Scales::kRow ? twice(-Form::zero(p) * s.scale[0]) : 0u;
      signed_pairs(words, 8 / Scales::kParts, scale, shift, out);
    } else {
      decode_pairs<PairBfloat, Form>(raw, Form::zero(p), out);
    }
  }
};

/// fp8: shifts exponent and mantissa to their place in bfloat16, then multiplies with a power of two. Codes of infinity
/// and NaN become large numbers.
template <class T, int kShift, int kExponent>
struct Fp8Decoder {
  struct Raw {
    std::uint32_t codes[8];
    float scale;
  };

  __device__ static __forceinline__ Raw load(const Planes& p, const RowCursor& row, std::uint32_t ahead,
                                             std::uint32_t group) {
    Raw raw;
    load_words<8>(raw.codes, p.codes + static_cast<std::size_t>(row.at + ahead) * 32);
    raw.scale = load_row_scale(p, row, group);
    return raw;
  }

  __device__ static __forceinline__ void decode(const Planes&, const Raw& raw, std::uint32_t (&out)[16]) {
    constexpr std::uint32_t kMagnitude = 0x7F00u >> kShift;
    const std::uint32_t power = std::uint32_t{127 + kExponent} << 7;
    const std::uint32_t scale = PairBfloat::make(raw.scale, raw.scale);
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const std::uint32_t pair = pick_bytes(raw.codes[i / 2], 0u, i % 2 == 0 ? 0x1404u : 0x3424u);
      const std::uint32_t bits = (pair & 0x80008000u) | (pair >> kShift & (kMagnitude | kMagnitude << 16));
      out[i] = PairBfloat::fma(PairBfloat::fma(bits, power | power << 16, 0u), scale, 0u);
    }
  }
};

template <>
struct TensorDecoder<Plain<Fp8E4M3>> : Fp8Decoder<Fp8E4M3, 4, 120> {};
template <>
struct TensorDecoder<Plain<Fp8E5M2>> : Fp8Decoder<Fp8E5M2, 3, 112> {};

/// Whether tensor cores multiply with weights of this layout: those of 8 bits and fewer.
template <class Form>
inline constexpr bool kHasTensorDecoder = Form::kCoded;
template <>
inline constexpr bool kHasTensorDecoder<Plain<Fp8E4M3>> = true;
template <>
inline constexpr bool kHasTensorDecoder<Plain<Fp8E5M2>> = true;

}  // namespace imago::kernels::cuda
