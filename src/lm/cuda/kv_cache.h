#pragma once

// Keys and values of a sequence in device memory.

#include <cstddef>
#include <memory>
#include <span>

#include "device/cuda/stream.h"
#include "kernels/attention.h"
#include "kernels/cuda/attention.h"
#include "lm/accelerator_cache.h"

namespace imago::lm::cuda {

/// One piece of memory: for each block keys, then values, each as CacheShape says.
class KvCache final : public AcceleratorCache {
 public:
  /// Throws DeviceError if it does not fit, saying how many tokens would.
  KvCache(std::shared_ptr<Device> device, const kernels::CacheShape& shape, std::size_t first_block,
          std::size_t blocks);

  void read(std::size_t block, CachePart part, std::size_t tokens, std::span<std::byte> to) const override;
  void write(std::size_t block, CachePart part, std::size_t tokens, std::span<const std::byte> from) override;

  const kernels::CacheShape& shape() const noexcept { return shape_; }
  /// Of block number first_block + index.
  kernels::cuda::GpuCache block(std::size_t index) const noexcept;

 private:
  std::size_t offset_of(std::size_t block, CachePart part) const noexcept;

  kernels::CacheShape shape_;
  std::size_t first_block_, part_bytes_;
  Buffer data_;
};

}  // namespace imago::lm::cuda
