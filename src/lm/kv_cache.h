#pragma once

// Keys and values of one sequence, for all blocks.

#include <cstddef>
#include <memory>
#include <vector>

#include "imago/device.h"
#include "imago/lm.h"
#include "kernels/attention.h"
#include "lm/accelerator_cache.h"
#include "models/traits.h"

namespace imago::lm {

class Accelerator;

/// Memory of the host is asked for at once and comes from the system as tokens fill it.
struct KvCache {
  KvCache() = default;
  /// With an accelerator, its blocks have theirs there. Throws UsageError if the heads of the model do not fit the
  /// kind, std::bad_alloc, DeviceError.
  KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows, Accelerator* accelerator = nullptr);

  kernels::CacheShape shape;
  std::size_t blocks = 0;
  std::vector<Buffer> keys, values;               ///< one per block of the host
  std::unique_ptr<AcceleratorCache> accelerated;  ///< of the blocks behind those; null: there are none

  /// Of one token, all blocks.
  std::size_t token_bytes() const { return 2 * blocks * shape.heads * shape.row_bytes(); }
};

/// Tokens of a batch that belong to one sequence and follow each other there.
struct Segment {
  KvCache* cache = nullptr;
  std::size_t past = 0;    ///< tokens in the cache before them
  std::size_t tokens = 0;  ///< in the batch, behind those of the segments before
};

}  // namespace imago::lm
