// Products of many tokens with packed weights by tiles of bfloat16; all else as without them.

#include <concepts>
#include <type_traits>

#include "kernels/avx512/lanes_dot.h"
#include "kernels/avx512/matrix.h"
#include "kernels/avx512/tiles.h"
#include "quant/block_format.h"
#include "quant/expanded.h"

namespace imago::kernels::avx512 {

using namespace imago::quant;  // the block types

namespace {
// clang-format off
#include "quant/blocks.inl.h"
#include "kernels/generic/dtype_lanes.inl.h"
#include "kernels/generic/matrix.inl.h"
#include "kernels/avx512/matrix_tiles.inl.h"
// clang-format on

MatrixFunctions with_tiles(MatrixFunctions functions, ProductFunction tiles) noexcept {
  functions.tile_matmul = tiles;
  functions.tile_scratch_bytes = tile_scratch_bytes;
  functions.tile_token = tile_token;
  return functions;
}
}  // namespace

MatrixFunctions amx_block_matrix(BlockFormat format, bool fast) noexcept {
  if (!fast) return {};
  return quant::visit(format, [=]<class Block>(std::type_identity<Block>) -> MatrixFunctions {
    if constexpr (std::is_same_v<Block, EntityQ4_0>) {
      return {};
    } else {
      return with_tiles(vnni_block_matrix(format, true), planes_by_tiles<RunFormatOf<Block>>);
    }
  });
}

MatrixFunctions amx_dtype_matrix(DType dtype, bool fast) noexcept {
  if (!fast) return {};
  return imago::visit(dtype, [=]<class T>(std::type_identity<T>) -> MatrixFunctions {
    if constexpr (kIsFp8<T>) {
      return with_tiles(dtype_matrix(dtype, true), columns_by_tiles<T>);
    } else if constexpr (kBits<T> <= 8) {
      return with_tiles(vnni_dtype_matrix(dtype, true), planes_by_tiles<RunFormatOf<T>>);
    } else {
      return {};
    }
  });
}

}  // namespace imago::kernels::avx512
