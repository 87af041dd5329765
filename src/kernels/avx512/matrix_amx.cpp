// Products of many tokens with packed weights by tiles of bfloat16; all else as without them.

#include "kernels/avx512/lanes_dot.h"
#include "kernels/avx512/tiles.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx512 {

#include "kernels/generic/matrix.inl.h"

namespace {

#include "kernels/avx512/matrix_tiles.inl.h"

using FastTerms = Terms<1, 1>;

template <class Terms>
MatrixFunctions with_tiles(MatrixFunctions functions, ProductFunction tiles) noexcept {
  functions.alike = functions.alike < kTileBatch ? functions.alike : kTileBatch - 1;
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

MatrixFunctions amx_matrix(Format format, bool fast) noexcept {
  return visit(format, [=]<class T>(std::type_identity<T>) -> MatrixFunctions {
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>) {
      if (fast) return {};
      return with_tiles<ExactTerms<T>>(matrix(format, false), columns_by_tiles<T, ExactTerms<T>>);
    } else if constexpr (kIsFp8<T>) {
      if (!fast) return {};
      return with_tiles<FastTerms>(matrix(format, true), columns_by_tiles<T, FastTerms>);
    } else if constexpr (kHasPanels<T>) {
      if (!fast) return {};
      return with_tiles<FastTerms>(vnni_matrix(format, true), panels_by_tiles<T, FastTerms>);
    } else {
      return {};
    }
  });
}

}  // namespace imago::kernels::avx512
