#pragma once

#include "imago/format.h"
#include "kernels/codec_args.h"

namespace imago::kernels::ref {

/// Kernels that pack and unpack `dtype` in the bit layouts of spec/checkpoint.md §4, one value at a time with
/// quantize_value and dequantize_value: the definition of correct.
EncodeFunction dtype_encoder(DType dtype) noexcept;
DecodeFunction dtype_decoder(DType dtype) noexcept;

}  // namespace imago::kernels::ref
