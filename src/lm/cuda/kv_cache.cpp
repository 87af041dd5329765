#include "lm/cuda/kv_cache.h"

#include <fmt/format.h>

#include "base/checked.h"
#include "imago/error.h"
#include "lm/device_plan.h"

namespace imago::lm::cuda {

namespace {

// Attention kernels read caches in lines.
constexpr std::size_t kAlignment = 256;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

Buffer allocate(Device& device, const kernels::CacheShape& shape, std::size_t parts) {
  const std::size_t bytes = checked_mul(aligned(shape.bytes()), parts, "cache");
  const std::uint64_t free = free_memory(device.name());
  if (bytes > free) {
    const std::size_t token_bytes = parts * shape.heads * shape.row_bytes();
    throw DeviceError(
        fmt::format("a context of {} tokens needs {} on {}, {} more than the {} that are free; a context of {} fits",
                    shape.rows, bytes_text(bytes), device.name(), bytes_text(bytes - free), bytes_text(free),
                    // Batches need memory too.
                    static_cast<std::size_t>(0.95 * static_cast<double>(free) / static_cast<double>(token_bytes))));
  }
  return device.allocate(bytes);
}

}  // namespace

KvCache::KvCache(std::shared_ptr<Device> device, const kernels::CacheShape& shape, std::size_t first_block,
                 std::size_t blocks)
    : shape_(shape),
      first_block_(first_block),
      part_bytes_(aligned(shape.bytes())),
      data_(allocate(*device, shape, 2 * (blocks - first_block))) {}

std::size_t KvCache::offset_of(std::size_t block, CachePart part) const noexcept {
  return (2 * (block - first_block_) + (part == CachePart::values ? 1 : 0)) * part_bytes_;
}

kernels::cuda::GpuCache KvCache::block(std::size_t index) const noexcept {
  std::byte* const base = data_.address();
  return {.keys = base + offset_of(first_block_ + index, CachePart::keys),
          .values = base + offset_of(first_block_ + index, CachePart::values)};
}

void KvCache::read(std::size_t block, CachePart part, std::size_t tokens, std::span<std::byte> to) const {
  const std::size_t used = tokens * shape_.row_bytes(), offset = offset_of(block, part);
  for (std::size_t head = 0; head < shape_.heads && used != 0; ++head) {
    data_.device()->download(data_, offset + head * shape_.head_bytes(), to.subspan(head * used, used));
  }
}

void KvCache::write(std::size_t block, CachePart part, std::size_t tokens, std::span<const std::byte> from) {
  const std::size_t used = tokens * shape_.row_bytes(), offset = offset_of(block, part);
  for (std::size_t head = 0; head < shape_.heads && used != 0; ++head) {
    data_.device()->upload(from.subspan(head * used, used), data_, offset + head * shape_.head_bytes());
  }
}

}  // namespace imago::lm::cuda
