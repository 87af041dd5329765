#include "lm/cuda/places.h"

#include <algorithm>
#include <cstring>

#include "lm/cuda/kv_cache.h"

namespace imago::lm::cuda {

namespace {

using kernels::CacheShape;
using kernels::cuda::GpuCache;

bool same(const CacheShape& a, const CacheShape& b) {
  return a.type == b.type && a.heads == b.heads && a.rows == b.rows && a.head_values == b.head_values;
}

const cuda::KvCache& device_cache(const Segment& segment) {
  return static_cast<const cuda::KvCache&>(*segment.cache->accelerated);
}

}  // namespace

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

void Places::fill(std::span<const TokenId> ids, std::span<const Segment> segments) {
  auto* const caches = reinterpret_cast<GpuCache*>(pinned_.bytes().data());
  auto* const numbers = reinterpret_cast<std::int32_t*>(caches + blocks_ * sequences_);
  std::copy(ids.begin(), ids.end(), numbers);
  groups_.clear();
  std::size_t token = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const cuda::KvCache& cache = device_cache(segment);
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

}  // namespace imago::lm::cuda
