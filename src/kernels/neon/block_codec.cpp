// The block formats of module quant, 4 blocks at a time.

#include "kernels/neon/codec.h"
#include "kernels/neon/lanes.h"
#include "quant/block_format.h"
#include "quant/expanded.h"

namespace imago::kernels::neon {

using namespace imago::quant;  // the block types

namespace {
#include "quant/blocks.inl.h"
}  // namespace

EncodeFunction block_encoder(BlockFormat format) noexcept {
  return quant::visit(format, []<class Block>(std::type_identity<Block>) -> EncodeFunction {
    return [](const EncodeArgs& a) noexcept {
      encode_blocks<Block>(a.weights, a.count, a.importance, a.row_values, a.first, a.packed);
    };
  });
}

DecodeFunction block_decoder(BlockFormat format) noexcept {
  return quant::visit(format, []<class Block>(std::type_identity<Block>) -> DecodeFunction {
    return [](const DecodeArgs& a) noexcept { decode_blocks<Block>(a.packed, a.count, a.weights); };
  });
}

}  // namespace imago::kernels::neon
