#pragma once

// Keys and values of one sequence, for all blocks.

#include <cstddef>
#include <vector>

#include "imago/device.h"
#include "imago/lm.h"
#include "kernels/attention.h"
#include "models/traits.h"

namespace imago::lm {

/// Memory is asked for at once and comes from the system as tokens fill it.
struct KvCache {
  KvCache() = default;
  /// Throws UsageError if the heads of the model do not fit the kind, std::bad_alloc.
  KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows);

  kernels::CacheShape shape;
  std::vector<Buffer> keys, values;  ///< one per block

  /// Of one token, all blocks.
  std::size_t token_bytes() const { return 2 * keys.size() * shape.heads * shape.row_bytes(); }
};

}  // namespace imago::lm
