#include "lm/kv_cache.h"

#include <fmt/format.h>

#include "imago/error.h"
#include "lm/accelerator.h"
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

KvCache::KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows, Accelerator* accelerator)
    : shape{.type = type_of(kind), .heads = traits.kv_heads, .rows = rows, .head_values = traits.head_values},
      blocks(traits.blocks) {
  if (kind == CacheKind::q8_0 && traits.head_values % quant::Q8_0::kValues != 0) {
    throw UsageError(
        fmt::format("a q8_0 cache keeps blocks of {} values, and the heads of this model have {}; use a float16 cache",
                    quant::Q8_0::kValues, traits.head_values));
  }
  const std::size_t bytes = shape.bytes();
  if (accelerator != nullptr) accelerated = accelerator->make_cache(shape);
  const std::size_t on_host = accelerator != nullptr ? accelerator->first_block() : traits.blocks;
  for (std::size_t i = 0; i < on_host; ++i) {
    keys.push_back(host_device()->allocate(bytes));
    values.push_back(host_device()->allocate(bytes));
  }
}

}  // namespace imago::lm
