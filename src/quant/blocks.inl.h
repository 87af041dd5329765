// All block formats and the loops over them. Compiled once with one lane in module quant, the definition, and once more
// in each folder of kernels with that folder's lanes. The includer provides the vocabulary, half_to_float and Expanded.

// In this order: later files use helpers of earlier ones.
// clang-format off
#include "quant/lanes_common.inl.h"
#include "quant/levels.inl.h"
#include "quant/search.inl.h"
#include "quant/super_block.inl.h"
#include "quant/q4_0.inl.h"
#include "quant/q5_0.inl.h"
#include "quant/q4_1.inl.h"
#include "quant/q5_1.inl.h"
#include "quant/q8_0.inl.h"
#include "quant/sub_scales.inl.h"
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
#include "quant/entity_q4_0.inl.h"
// clang-format on

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
    BlockCodec<Block>::template encode<kWeighted>(x, kWeighted ? w : x, out);  // unweighted encoders do not read w
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
  using Codec = BlockCodec<Block>;
  static_assert(Codec::kGroup % kLanes == 0);
  Expanded e;
  Codec::expand(block, e);
  for (int g = 0; g < Block::kValues / Codec::kGroup; ++g) {
    const Floats scale = splat(e.scales[g]);
    const Floats offset = splat(Codec::kHasOffset ? e.offsets[g] : 0.0f);
    for (int i = g * Codec::kGroup; i < (g + 1) * Codec::kGroup; i += kLanes) {
      const Floats product = scale * load_codes(e.codes + i);
      store_floats(Codec::kHasOffset ? product - offset : product, weights + i);
    }
  }
}

template <class Block>
inline void decode_blocks(const std::byte* packed, std::size_t count, float* weights) noexcept {
  const Block* blocks = reinterpret_cast<const Block*>(packed);  // of alignment 1, made of bytes
  for (std::size_t b = 0; b < count / Block::kValues; ++b) decode_block(blocks[b], weights + b * Block::kValues);
}
