#pragma once

// What changes from step to step: tokens, where they stand, and whose caches they see. It lies in pinned memory and in
// one piece of device memory of the same layout, so that one copy brings it over, recorded or not.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/cuda/stream.h"
#include "kernels/cuda/attention.h"
#include "lm/kv_cache.h"

namespace imago::lm::cuda {

using imago::cuda::Array;
using imago::cuda::PinnedMemory;
using imago::cuda::Stream;

/// Neighbouring tokens whose caches have one shape: attention runs once for them.
struct PlaceGroup {
  std::size_t first = 0, tokens = 0;
  kernels::CacheShape shape;
  std::size_t longest = 0;  ///< no position is beyond this
};

class Places {
 public:
  explicit Places(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  /// Room for that many; true if the memory has moved, which voids recorded work.
  bool reserve(std::size_t blocks, std::size_t sequences, std::size_t tokens);
  /// Writes a batch into pinned memory. REQUIRES: reserved; nothing queued before reads it any more.
  void fill(std::span<const TokenId> ids, std::span<const Segment> segments);
  /// Queues the copy.
  void send(Stream& stream) const;

  std::span<const PlaceGroup> groups() const noexcept { return groups_; }
  bool single() const noexcept { return sequences_ == 1; }
  const std::int32_t* ids() const noexcept;
  const std::int32_t* positions() const noexcept;
  const std::int32_t* sequences() const noexcept;  ///< null: all tokens are of the first
  /// One per sequence.
  const kernels::cuda::GpuCache* caches(std::size_t block) const noexcept;

 private:
  std::size_t bytes() const noexcept;

  std::shared_ptr<Device> device_;
  std::size_t blocks_ = 0, sequences_ = 0, tokens_ = 0;
  PinnedMemory pinned_;
  Array<std::byte> memory_;
  std::vector<PlaceGroup> groups_;
};

}  // namespace imago::lm::cuda
