#include "kernels/avx512/ops_lanes.h"
#include "kernels/avx512/tiles.h"
#include "kernels/folders.h"

namespace imago::kernels::avx512 {

namespace {
// clang-format off
#include "kernels/generic/math.inl.h"
#include "kernels/generic/attention_cache.inl.h"
#include "kernels/avx512/attention_tiles.inl.h"
// clang-format on
}  // namespace

void run_by_tiles(const AttentionArgs& a) noexcept {
  const TileRegisters registers;
  const std::size_t queries = a.tokens * a.group;
  for (std::size_t first = 0; first < queries; first += kGroupQueries) {
    TileAttention(a, first, queries - first < kGroupQueries ? queries - first : kGroupQueries).run();
  }
}

}  // namespace imago::kernels::avx512
