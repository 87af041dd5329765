#pragma once

#include "imago/format.h"
#include "kernels/codec_args.h"

namespace imago::kernels::neon {

EncodeFunction dtype_encoder(DType dtype) noexcept;
DecodeFunction dtype_decoder(DType dtype) noexcept;
EncodeFunction block_encoder(BlockFormat format) noexcept;
DecodeFunction block_decoder(BlockFormat format) noexcept;

}  // namespace imago::kernels::neon
