#include "kernels/ref/block_codec.h"

#include "quant/block_format.h"
#include "quant/rows.h"

namespace imago::kernels::ref {

EncodeFunction block_encoder(BlockFormat format) noexcept {
  return quant::visit(format, []<class Block>(std::type_identity<Block>) -> EncodeFunction {
    return [](const EncodeArgs& a) noexcept {
      static const quant::EncodeRows encode = quant::row_encoder(quant::block_format_of<Block>);
      encode(a.weights, a.count, a.importance, a.row_values, a.first, a.packed);
    };
  });
}

DecodeFunction block_decoder(BlockFormat format) noexcept {
  return quant::visit(format, []<class Block>(std::type_identity<Block>) -> DecodeFunction {
    return [](const DecodeArgs& a) noexcept {
      static const quant::DecodeRows decode = quant::row_decoder(quant::block_format_of<Block>);
      decode(a.packed, a.count, a.weights);
    };
  });
}

}  // namespace imago::kernels::ref
