#include "backend/cuda/places.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/memory.h"
#include "base/checked.h"
#include "imago/error.h"

namespace imago::backend::cuda {

namespace {

using kernels::CacheShape;
using kernels::cuda::GpuCache;
using kernels::cuda::StateRun;

// Attention kernels read whole lines of caches.
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kTokenNumbers = 6;

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

std::vector<std::size_t> offsets_of(std::span<const CacheShape> shapes, std::size_t pages) {
  std::vector<std::size_t> offsets = {0};
  for (const CacheShape& shape : shapes) {
    const std::size_t bytes = aligned(checked_mul(shape.bytes(), pages, "cache"));
    offsets.push_back(checked_add(offsets.back(), bytes, "cache"));
    offsets.push_back(checked_add(offsets.back(), shape.has_values ? bytes : 0, "cache"));
  }
  return offsets;
}

std::vector<std::size_t> offsets_of(std::span<const std::size_t> state_values, std::size_t slots) {
  std::vector<std::size_t> offsets = {0};
  for (const std::size_t values : state_values) {
    const std::size_t bytes = checked_mul(checked_mul(values, sizeof(float), "states"), slots, "states");
    offsets.push_back(checked_add(offsets.back(), aligned(bytes), "states"));
  }
  return offsets;
}

Buffer allocate(Device& device, std::span<const CacheShape> shapes, std::size_t pages, std::size_t bytes) {
  const std::uint64_t free = free_memory(device.name());
  if (bytes > free) {
    std::size_t token_bytes = 0;
    for (const CacheShape& shape : shapes) {
      token_bytes += (shape.has_values ? 2 : 1) * shape.heads * shape.row_bytes();
    }
    throw DeviceError(fmt::format(
        "a context of {} tokens needs {} on {}, {} more than the {} that are free; a context of {} fits",
        shapes.front().rows * pages, bytes_text(bytes), device.name(), bytes_text(bytes - free), bytes_text(free),
        // Batches need memory too.
        static_cast<std::size_t>(0.95 * static_cast<double>(free) / static_cast<double>(token_bytes))));
  }
  return device.allocate(bytes);
}

}  // namespace

DeviceCache::DeviceCache(std::shared_ptr<Device> device, std::vector<CacheShape> shapes, std::size_t pages,
                         std::vector<std::size_t> state_values, std::size_t states, std::size_t first_block)
    : shapes_(std::move(shapes)),
      first_block_(first_block),
      offsets_(offsets_of(shapes_, pages)),
      data_(allocate(*device, shapes_, pages, offsets_.back())),
      state_values_(std::move(state_values)),
      state_offsets_(offsets_of(state_values_, states)),
      states_(device->allocate(state_offsets_.back())),
      copies_(std::move(device)) {}

std::size_t DeviceCache::state_offset(std::size_t block, std::uint32_t slot) const noexcept {
  const std::size_t index = block - first_block_;
  return state_offsets_[index] + slot * state_values_[index] * sizeof(float);
}

void DeviceCache::read_state(std::size_t block, std::uint32_t slot, std::span<float> to) const {
  states_.device()->download(states_, state_offset(block, slot), std::as_writable_bytes(to));
}

void DeviceCache::write_state(std::size_t block, std::uint32_t slot, std::span<const float> from) {
  states_.device()->upload(std::as_bytes(from), states_, state_offset(block, slot));
}

void DeviceCache::copy_state(std::uint32_t from, std::uint32_t to) {
  for (std::size_t i = 0; i < state_values_.size(); ++i) {
    const std::size_t bytes = state_values_[i] * sizeof(float), block = first_block_ + i;
    if (bytes == 0) continue;
    copies_.copy_within(states_.address() + state_offset(block, from), states_.address() + state_offset(block, to),
                        bytes);
  }
  copies_.wait();
}

std::size_t DeviceCache::offset_of(std::size_t block, CachePart part) const noexcept {
  return offsets_[2 * (block - first_block_) + (part == CachePart::values ? 1 : 0)];
}

kernels::cuda::GpuCache DeviceCache::block(std::size_t index) const noexcept {
  std::byte* const base = data_.address();
  const CachePart values = shapes_[index].has_values ? CachePart::values : CachePart::keys;
  return {.keys = base + offset_of(first_block_ + index, CachePart::keys),
          .values = base + offset_of(first_block_ + index, values)};
}

float* DeviceCache::state(std::size_t index, std::uint32_t slot) const noexcept {
  return reinterpret_cast<float*>(states_.address() + state_offset(first_block_ + index, slot));
}

void DeviceCache::read(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                       std::span<std::byte> to) const {
  const std::size_t offset = offset_of(block, part);
  for_each_stretch(page(block), pages, tokens, [&](std::size_t in_cache, std::size_t in_file, std::size_t bytes) {
    data_.device()->download(data_, offset + in_cache, to.subspan(in_file, bytes));
  });
}

void DeviceCache::write(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
                        std::span<const std::byte> from) {
  const std::size_t offset = offset_of(block, part);
  for_each_stretch(page(block), pages, tokens, [&](std::size_t in_cache, std::size_t in_file, std::size_t bytes) {
    data_.device()->upload(from.subspan(in_file, bytes), data_, offset + in_cache);
  });
}

void DeviceCache::copy(std::uint32_t from, std::uint32_t to, std::size_t tokens) {
  if (tokens == 0) return;
  for (std::size_t i = 0; i + 1 < offsets_.size(); ++i) {
    const CacheShape& shape = shapes_[i / 2];
    if (shape.heads == 0 || (i % 2 == 1 && !shape.has_values)) continue;
    std::byte* const part = data_.address() + offsets_[i];
    copies_.copy_rows_within(part + from * shape.bytes(), part + to * shape.bytes(), shape.head_bytes(),
                             tokens * shape.row_bytes(), shape.heads);
  }
  copies_.wait();
}

// Caches first, for their alignment, and states: [blocks][sequences] each; then kTokenNumbers numbers of each token,
// all of one kind together: ids, positions, sequences, rows that are read, ends of texts, and which text of a pair it
// is in; last the pages of the sequences, as many numbers for each.
std::size_t Places::bytes() const noexcept {
  return numbers_at() + (kTokenNumbers * tokens_ + sequences_ * page_numbers_) * sizeof(std::int32_t);
}

bool Places::reserve(std::size_t blocks, std::span<const Segment> segments, std::size_t tokens) {
  blocks_ = blocks;
  sequences_ = segments.size();
  tokens_ = tokens;
  page_numbers_ = 0;
  for (const Segment& segment : segments) {
    page_numbers_ = std::max(page_numbers_, std::bit_ceil(segment.pages.size()));
  }
  if (bytes() <= memory_.size()) return false;
  const std::size_t room = 2 * bytes();
  memory_ = Array<std::byte>(*device_, room);
  pinned_ = PinnedMemory(room);
  return true;
}

void Places::fill(std::span<const Token> ids, std::span<const Segment> segments, std::span<const std::uint32_t> rows) {
  auto* const caches = reinterpret_cast<GpuCache*>(pinned_.bytes().data());
  auto* const states = reinterpret_cast<StateRun*>(pinned_.bytes().data() + states_at());
  auto* const numbers = reinterpret_cast<std::int32_t*>(pinned_.bytes().data() + numbers_at());
  std::copy(ids.begin(), ids.end(), numbers);
  std::copy(rows.begin(), rows.end(), numbers + 3 * tokens_);
  groups_.clear();
  most_tokens_ = 0;
  std::size_t token = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const auto& cache = static_cast<const DeviceCache&>(*segment.cache);
    const std::size_t pages = kTokenNumbers * tokens_ + s * page_numbers_;
    std::copy(segment.pages.begin(), segment.pages.end(), numbers + pages);
    for (std::size_t block = 0; block < blocks_; ++block) {
      caches[block * sequences_ + s] = cache.block(block);
      caches[block * sequences_ + s].pages = reinterpret_cast<const std::uint32_t*>(this->ids() + pages);
      if (!has_states_) continue;
      states[block * sequences_ + s] = {.state = cache.state(block, segment.state),
                                        .kept = cache.state(block, segment.kept_state),
                                        .first = static_cast<std::int32_t>(token),
                                        .tokens = static_cast<std::int32_t>(segment.tokens),
                                        .kept_tokens = static_cast<std::int32_t>(segment.kept_tokens),
                                        .is_new = segment.past == 0 ? 1 : 0};
    }
    most_tokens_ = std::max(most_tokens_, segment.tokens);
    const bool separate = segment.tokens == 1;
    if (groups_.empty() || groups_.back().separate != separate || groups_.back().type != cache.type() ||
        groups_.back().page_rows != cache.page_rows()) {
      groups_.push_back({.first = token, .type = cache.type(), .page_rows = cache.page_rows(), .separate = separate});
    }
    PlaceGroup& group = groups_.back();
    group.paged |= segment.pages.size() != 1 || segment.pages.front() != 0;
    group.tokens += segment.tokens;
    group.longest = std::max(group.longest, segment.past + segment.tokens - 1);
    for (std::size_t t = 0; t < segment.tokens; ++t, ++token) {
      numbers[tokens_ + token] = static_cast<std::int32_t>(segment.past + t);
      numbers[2 * tokens_ + token] = static_cast<std::int32_t>(s);
      numbers[4 * tokens_ + token] = static_cast<std::int32_t>(segment.past + segment.tokens);
      numbers[5 * tokens_ + token] = segment.past + t >= segment.second_text ? 1 : 0;
    }
  }
}

void Places::send(Stream& stream) const { stream.copy_in(pinned_.bytes().first(bytes()), memory_.data()); }

const GpuCache* Places::caches(std::size_t block) const noexcept {
  return reinterpret_cast<const GpuCache*>(memory_.data()) + block * sequences_;
}

kernels::cuda::StateRuns Places::states(std::size_t block) const noexcept {
  const auto* const runs = reinterpret_cast<const StateRun*>(memory_.data() + states_at());
  return {runs + block * sequences_, sequences_, most_tokens_};
}

const std::int32_t* Places::ids() const noexcept {
  return reinterpret_cast<const std::int32_t*>(memory_.data() + numbers_at());
}
const std::int32_t* Places::positions() const noexcept { return ids() + tokens_; }
const std::int32_t* Places::sequences() const noexcept { return single() ? nullptr : ids() + 2 * tokens_; }
const std::int32_t* Places::rows() const noexcept { return ids() + 3 * tokens_; }
const std::int32_t* Places::text_ends() const noexcept { return ids() + 4 * tokens_; }
const std::int32_t* Places::texts() const noexcept { return ids() + 5 * tokens_; }

}  // namespace imago::backend::cuda
