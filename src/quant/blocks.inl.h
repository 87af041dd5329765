// All block formats and the loops over them. Compiled once with one lane in quant/blocks.h, the definition, and once
// more in each folder of kernels with that folder's lanes. The includer provides the lanes and quant/block_data.h.
//
// A format is one struct in a file of its own: the bytes of a block, and what everything else is derived from:
//   kFormat      its name in imago/format.h
//   kValues      weights of a block; kGroup of them share a scale
//   kBits        bits per code in the panels of CPU kernels and the planes of GPU kernels
//   Levels       what codes stand for (search.inl.h)
//   kScales      the kind of its scales; kHasOffset: something is subtracted, or a minimum added
//   kSubBits, kSignedSubs   the integers of ScaleKind::sub_scales
//   kUnitExponent           optional: scales are times two to this power besides
//   scales()     the scales as they are stored
//   levels(out)  the levels of all weights
//   encode       one block per lane: weights x[kValues], importance w[kValues] -> bytes at out[lane]

// In this order: later files use helpers of earlier ones.
// clang-format off
#include "quant/lanes_common.inl.h"
#include "quant/search.inl.h"
#include "quant/super_block.inl.h"
#include "quant/q4_0.inl.h"
#include "quant/q5_0.inl.h"
#include "quant/q4_1.inl.h"
#include "quant/q5_1.inl.h"
#include "quant/q8_0.inl.h"
#include "quant/q4_k.inl.h"
#include "quant/q5_k.inl.h"
#include "quant/q2_k.inl.h"
#include "quant/q3_k.inl.h"
#include "quant/q6_k.inl.h"
#include "quant/iq4_nl.inl.h"
#include "quant/iq4_xs.inl.h"
#include "quant/tq2_0.inl.h"
#include "quant/tq1_0.inl.h"
#include "quant/mxfp4.inl.h"
#include "quant/nvfp4.inl.h"
#include "quant/codebook.inl.h"
#include "quant/iq1_s.inl.h"
#include "quant/iq1_m.inl.h"
#include "quant/iq2_xxs.inl.h"
#include "quant/iq2_xs.inl.h"
#include "quant/iq2_s.inl.h"
#include "quant/iq3_xxs.inl.h"
#include "quant/iq3_s.inl.h"
#include "quant/q1_0.inl.h"
#include "quant/q2_0.inl.h"
#include "quant/entity_q4_0.inl.h"
// clang-format on

template <class... Blocks>
struct BlockList {};
using AllBlocks = BlockList<Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0,
                            MXFP4, NVFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, Q1_0, Q2_0, EntityQ4_0>;

template <class F, class First, class... Others>
constexpr decltype(auto) visit_block(BlockFormat format, F&& f, BlockList<First, Others...>) {
  if constexpr (sizeof...(Others) > 0) {
    if (format != First::kFormat) return visit_block(format, f, BlockList<Others...>{});
  }
  return f(std::type_identity<First>{});
}

/// Calls `f(std::type_identity<Block>{})` with the struct of a format and returns what it returns.
template <class F>
constexpr decltype(auto) visit(BlockFormat format, F&& f) {
  return visit_block(format, f, AllBlocks{});
}

/// The same for any format; those of dtypes are the code types of imago/format.h.
template <class F>
constexpr decltype(auto) visit(Format format, F&& f) {
  return format.is_block() ? visit(format.block(), f) : imago::visit(format.dtype(), f);
}

/// Two to this power multiplies the scales of a block.
template <class Block>
inline constexpr int kUnitExponentOf = [] {
  if constexpr (requires { Block::kUnitExponent; }) return Block::kUnitExponent;
  return 0;
}();

/// Takes a block apart.
template <class Block>
inline void expand(const Block& block, Expanded& out) noexcept {
  block.levels(out.codes);
  const BlockScales s = block.scales();
  if constexpr (Block::kScales == ScaleKind::half) {
    static_assert(Block::kGroup == Block::kValues);
    out.scales[0] = half_to_float(static_cast<std::uint16_t>(s.scale));
    if (Block::kHasOffset) out.offsets[0] = -half_to_float(static_cast<std::uint16_t>(s.min));
  } else if constexpr (Block::kScales == ScaleKind::single) {
    static_assert(Block::kGroup == Block::kValues);
    out.scales[0] = __builtin_bit_cast(float, s.scale);
  } else {
    constexpr float kUnit = 1.0f / static_cast<float>(1 << -kUnitExponentOf<Block>);
    const float scale = half_to_float(static_cast<std::uint16_t>(s.scale)) * kUnit;
    const float min = half_to_float(static_cast<std::uint16_t>(s.min));
    for (int g = 0; g < Block::kValues / Block::kGroup; ++g) {
      const std::uint32_t sub = s.subs[g];
      if constexpr (Block::kScales == ScaleKind::exponent) {
        // The two smallest powers are subnormal.
        out.scales[g] = __builtin_bit_cast(float, sub < 2 ? 0x00200000u << sub : (sub - 1) << 23);
      } else if constexpr (Block::kScales == ScaleKind::small_float) {
        // Exponent and mantissa moved into place; the power of two corrects the bias and makes subnormals right.
        out.scales[g] = __builtin_bit_cast(float, sub << 20) * 0x1p119f;
      } else {
        out.scales[g] = scale * static_cast<float>(Block::kSignedSubs ? static_cast<std::int8_t>(sub) : s.subs[g]);
        if (Block::kHasOffset) out.offsets[g] = min * static_cast<float>(s.lows[g]);
      }
    }
  }
}

/// Encodes `count` weights, kLanes blocks at a time. Weight i has importance[(first + i) % row_values], or 1 if null.
/// Lanes past the last block repeat it into a scratch block.
template <class Block, bool kWeighted>
inline void encode_blocks_as(const float* weights, std::size_t count, const float* importance, std::size_t row_values,
                             std::size_t first, std::byte* packed) noexcept {
  constexpr int kValues = Block::kValues;
  const std::size_t blocks = count / kValues;
  for (std::size_t block = 0; block < blocks; block += kLanes) {
    const float* rows[kLanes];
    const float* factors[kLanes];
    std::byte* out[kLanes];
    std::byte scratch[sizeof(Block)];
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::size_t wanted = block + static_cast<std::size_t>(lane);
      const std::size_t b = wanted < blocks ? wanted : blocks - 1;
      rows[lane] = weights + b * kValues;
      if (kWeighted) factors[lane] = importance + (first + b * kValues) % row_values;
      out[lane] = wanted < blocks ? packed + b * sizeof(Block) : scratch;
    }
    Floats x[kValues];
    Floats w[kWeighted ? kValues : 1];
    load_transposed(rows, kValues, x);
    if (kWeighted) load_transposed(factors, kValues, w);
    for (int i = 0; i < kValues; ++i) x[i] = finite(x[i]);
    Block::template encode<kWeighted>(x, kWeighted ? w : x, out);  // unweighted encoders do not read w
  }
}

template <class Block>
inline void encode_blocks(const float* weights, std::size_t count, const float* importance, std::size_t row_values,
                          std::size_t first, std::byte* packed) noexcept {
  if (importance != nullptr) {
    encode_blocks_as<Block, true>(weights, count, importance, row_values, first, packed);
  } else {
    encode_blocks_as<Block, false>(weights, count, importance, row_values, first, packed);
  }
}

template <class Block>
inline void decode_block(const Block& block, float* weights) noexcept {
  static_assert(Block::kGroup % kLanes == 0);
  Expanded e;
  expand(block, e);
  for (int g = 0; g < Block::kValues / Block::kGroup; ++g) {
    const Floats scale = splat(e.scales[g]);
    const Floats offset = splat(Block::kHasOffset ? e.offsets[g] : 0.0f);
    for (int i = g * Block::kGroup; i < (g + 1) * Block::kGroup; i += kLanes) {
      const Floats product = scale * load_codes(e.codes + i);
      store_floats(Block::kHasOffset ? product - offset : product, weights + i);
    }
  }
}

template <class Block>
inline void decode_blocks(const std::byte* packed, std::size_t count, float* weights) noexcept {
  const Block* blocks = reinterpret_cast<const Block*>(packed);  // any address will do: blocks are made of bytes
  for (std::size_t b = 0; b < count / Block::kValues; ++b) decode_block(blocks[b], weights + b * Block::kValues);
}
