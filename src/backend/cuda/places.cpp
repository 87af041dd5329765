#include "backend/cuda/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "backend/memory.h"
#include "base/checked.h"
#include "imago/error.h"

namespace imago::backend::cuda {

namespace {

using kernels::CacheShape;
using kernels::cuda::GpuCache;

bool same(const CacheShape& a, const CacheShape& b) {
  return a.type == b.type && a.heads == b.heads && a.rows == b.rows && a.head_values == b.head_values;
}

// Attention kernels read whole lines of caches.
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

DeviceCache::DeviceCache(std::shared_ptr<Device> device, const kernels::CacheShape& shape, BlockRange blocks)
    : shape_(shape),
      first_block_(blocks.begin),
      part_bytes_(aligned(shape.bytes())),
      data_(allocate(*device, shape, 2 * (blocks.end - blocks.begin))) {}

std::size_t DeviceCache::offset_of(std::size_t block, CachePart part) const noexcept {
  return (2 * (block - first_block_) + (part == CachePart::values ? 1 : 0)) * part_bytes_;
}

kernels::cuda::GpuCache DeviceCache::block(std::size_t index) const noexcept {
  std::byte* const base = data_.address();
  return {.keys = base + offset_of(first_block_ + index, CachePart::keys),
          .values = base + offset_of(first_block_ + index, CachePart::values)};
}

void DeviceCache::read(std::size_t block, CachePart part, std::size_t tokens, std::span<std::byte> to) const {
  const std::size_t used = tokens * shape_.row_bytes(), offset = offset_of(block, part);
  for (std::size_t head = 0; head < shape_.heads && used != 0; ++head) {
    data_.device()->download(data_, offset + head * shape_.head_bytes(), to.subspan(head * used, used));
  }
}

void DeviceCache::write(std::size_t block, CachePart part, std::size_t tokens, std::span<const std::byte> from) {
  const std::size_t used = tokens * shape_.row_bytes(), offset = offset_of(block, part);
  for (std::size_t head = 0; head < shape_.heads && used != 0; ++head) {
    data_.device()->upload(from.subspan(head * used, used), data_, offset + head * shape_.head_bytes());
  }
}

// Caches first, for their alignment: [blocks][sequences]; then ids, positions and sequence numbers of the tokens.
std::size_t Places::bytes() const noexcept {
  return blocks_ * sequences_ * sizeof(GpuCache) + 3 * tokens_ * sizeof(std::int32_t);
}

bool Places::reserve(std::size_t blocks, std::size_t sequences, std::size_t tokens) {
  blocks_ = blocks;
  sequences_ = sequences;
  tokens_ = tokens;
  if (bytes() <= memory_.size()) return false;
  const std::size_t room = 2 * bytes();
  memory_ = Array<std::byte>(*device_, room);
  pinned_ = PinnedMemory(room);
  return true;
}

void Places::fill(std::span<const Token> ids, std::span<const Segment> segments) {
  auto* const caches = reinterpret_cast<GpuCache*>(pinned_.bytes().data());
  auto* const numbers = reinterpret_cast<std::int32_t*>(caches + blocks_ * sequences_);
  std::copy(ids.begin(), ids.end(), numbers);
  groups_.clear();
  std::size_t token = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const auto& cache = static_cast<const DeviceCache&>(*segment.cache);
    for (std::size_t block = 0; block < blocks_; ++block) caches[block * sequences_ + s] = cache.block(block);
    if (groups_.empty() || !same(groups_.back().shape, cache.shape())) {
      groups_.push_back({.first = token, .shape = cache.shape()});
    }
    PlaceGroup& group = groups_.back();
    group.tokens += segment.tokens;
    group.longest = std::max(group.longest, segment.past + segment.tokens - 1);
    for (std::size_t t = 0; t < segment.tokens; ++t, ++token) {
      numbers[tokens_ + token] = static_cast<std::int32_t>(segment.past + t);
      numbers[2 * tokens_ + token] = static_cast<std::int32_t>(s);
    }
  }
}

void Places::send(Stream& stream) const { stream.copy_in(pinned_.bytes().first(bytes()), memory_.data()); }

const GpuCache* Places::caches(std::size_t block) const noexcept {
  return reinterpret_cast<const GpuCache*>(memory_.data()) + block * sequences_;
}

const std::int32_t* Places::ids() const noexcept { return reinterpret_cast<const std::int32_t*>(caches(blocks_)); }
const std::int32_t* Places::positions() const noexcept { return ids() + tokens_; }
const std::int32_t* Places::sequences() const noexcept { return single() ? nullptr : ids() + 2 * tokens_; }

}  // namespace imago::backend::cuda
