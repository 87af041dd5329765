#pragma once

// Keys and values of one sequence, for all blocks.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "imago/lm.h"
#include "kernels/attention.h"
#include "models/traits.h"

namespace imago::lm {

struct KvCache {
  KvCache() = default;
  /// Each runner has the cache of its blocks; without runners there are sizes only. Throws UsageError if the heads of
  /// the model do not fit the kind, std::bad_alloc, DeviceError.
  KvCache(const models::Traits& traits, CacheKind kind, std::size_t rows,
          std::span<const std::unique_ptr<backend::Runner>> runners = {});

  kernels::CacheShape shape;
  std::size_t blocks = 0;
  std::vector<std::unique_ptr<backend::Cache>> parts;  ///< one per runner
  std::vector<std::size_t> part_ends;                  ///< the block after the last of each part

  /// The part that has a block.
  backend::Cache& part_of(std::size_t block) const;
  /// Of one token, all blocks.
  std::size_t token_bytes() const { return 2 * blocks * shape.heads * shape.row_bytes(); }
};

/// Consecutive tokens of one sequence in a batch.
struct Segment {
  const KvCache* cache = nullptr;
  std::size_t past = 0;    ///< tokens in the cache before them
  std::size_t tokens = 0;  ///< in the batch, after those of the segments before
};

}  // namespace imago::lm
