#include "lm/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"
#include "quant/q8_0.h"

namespace imago::lm {

namespace {

kernels::CacheType type_of(CacheKind kind) noexcept {
  switch (kind) {
    case CacheKind::float32: return kernels::CacheType::f32;
    case CacheKind::float16: return kernels::CacheType::f16;
    case CacheKind::q8_0: break;
  }
  return kernels::CacheType::q8_0;
}

}  // namespace

KvCache::KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows,
                 std::span<const std::unique_ptr<backend::Runner>> runners)
    : shape{.type = type_of(kind), .heads = traits.kv_heads, .rows = rows, .head_values = traits.head_values},
      blocks(traits.blocks) {
  if (kind == CacheKind::q8_0 && traits.head_values % quant::Q8_0::kValues != 0) {
    throw UsageError(
        fmt::format("a q8_0 cache stores blocks of {} values, and the heads of this model have {}; use a float16 cache",
                    quant::Q8_0::kValues, traits.head_values));
  }
  for (const auto& runner : runners) {
    parts.push_back(runner->make_cache(shape));
    part_ends.push_back(runner->blocks().end);
  }
}

backend::Cache& KvCache::part_of(std::size_t block) const {
  const auto found = std::upper_bound(part_ends.begin(), part_ends.end(), block);
  return *parts.at(static_cast<std::size_t>(found - part_ends.begin()));
}

}  // namespace imago::lm
