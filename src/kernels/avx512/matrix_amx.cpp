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

using FastTerms = Terms<1, 1>;

template <class Terms>
MatrixFunctions with_tiles(MatrixFunctions functions, ProductFunction tiles) noexcept {
  functions.tile_matmul = tiles;
  functions.tile_scratch_bytes = Terms::scratch_bytes;
  functions.tile_token = Terms::tile_token;
  functions.tile_terms = Terms::kOfTokens;
  return functions;
}

/// Activations of exact products are float32, three terms; so are weights that are not narrower.
template <class T>
using ExactTerms = Terms<3, std::is_same_v<T, BFloat16> ? 1
                            : std::is_same_v<T, Half>   ? 2
                                                        : 3>;
}  // namespace

MatrixFunctions amx_block_matrix(BlockFormat format, bool fast) noexcept {
  if (!fast) return {};
  return quant::visit(format, [=]<class Block>(std::type_identity<Block>) -> MatrixFunctions {
    if constexpr (std::is_same_v<Block, EntityQ4_0>) {
      return {};
    } else {
      return with_tiles<FastTerms>(vnni_block_matrix(format, true), planes_by_tiles<RunFormatOf<Block>, FastTerms>);
    }
  });
}

MatrixFunctions amx_dtype_matrix(DType dtype, bool fast) noexcept {
  return imago::visit(dtype, [=]<class T>(std::type_identity<T>) -> MatrixFunctions {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      if (fast) return {};
      return with_tiles<ExactTerms<T>>(dtype_matrix(dtype, false), columns_by_tiles<T, ExactTerms<T>>);
    } else if constexpr (kIsFp8<T>) {
      if (!fast) return {};
      return with_tiles<FastTerms>(dtype_matrix(dtype, true), columns_by_tiles<T, FastTerms>);
    } else if constexpr (kBits<T> <= 8) {
      if (!fast) return {};
      return with_tiles<FastTerms>(vnni_dtype_matrix(dtype, true), planes_by_tiles<RunFormatOf<T>, FastTerms>);
    } else {
      return {};
    }
  });
}

}  // namespace imago::kernels::avx512
