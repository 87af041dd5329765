#pragma once

#include "imago/format.h"
#include "kernels/codec_args.h"

namespace imago::kernels::ref {

/// The encoders and decoders of module quant, one block at a time.
EncodeFunction block_encoder(BlockFormat format) noexcept;
DecodeFunction block_decoder(BlockFormat format) noexcept;

}  // namespace imago::kernels::ref
