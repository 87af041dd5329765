#include <concepts>

#include "kernels/neon/codec.h"
#include "kernels/neon/lanes_io.h"

namespace imago::kernels::neon {

namespace {
#include "kernels/generic/dtype_lanes.inl.h"

#include "kernels/generic/dtype_codec.inl.h"  // builds on the lanes, hence its own block
}  // namespace

EncodeFunction dtype_encoder(DType dtype) noexcept {
  return visit(dtype, []<class T>(std::type_identity<T>) -> EncodeFunction { return &encode_dtype<T>; });
}

DecodeFunction dtype_decoder(DType dtype) noexcept {
  return visit(dtype, []<class T>(std::type_identity<T>) -> DecodeFunction { return &decode_dtype<T>; });
}

}  // namespace imago::kernels::neon
