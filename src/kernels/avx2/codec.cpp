// Conversions between float32 and packed weights: dtypes 8 values and block formats 8 blocks at a time.

#include <concepts>
#include <type_traits>

#include "kernels/avx2/lanes.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx2 {

using namespace imago::quant;  // the plain data of block formats

namespace {
// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
#include "kernels/generic/codec.inl.h"
// clang-format on
}  // namespace

EncodeFunction encoder(Format format) noexcept {
  return visit(format, []<class T>(std::type_identity<T>) -> EncodeFunction { return &encode<T>; });
}

DecodeFunction decoder(Format format) noexcept {
  return visit(format, []<class T>(std::type_identity<T>) -> DecodeFunction { return &decode<T>; });
}

}  // namespace imago::kernels::avx2
