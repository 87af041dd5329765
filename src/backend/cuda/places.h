#pragma once

// Keys and values in device memory, and what changes from step to step: tokens, their positions, the caches they see
// with the pages of their sequences, and the rows that are read at the end. The latter is in pinned memory and in
// device memory of the same layout, so that one copy uploads it, recorded or not.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "device/cuda/stream.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/recurrent.h"

namespace imago::backend::cuda {

using imago::cuda::Array;
using imago::cuda::PinnedMemory;
using imago::cuda::Stream;

/// Two allocations: for each block the pages of keys, then those of values; and for each block the slots of states.
class DeviceCache final : public Cache {
 public:
  /// One shape of a page and one number of values per block. Throws DeviceError if they do not fit, saying how many
  /// tokens would.
  DeviceCache(std::shared_ptr<Device> device, std::vector<kernels::CacheShape> shapes, std::size_t pages,
              std::vector<std::size_t> state_values, std::size_t states, std::size_t first_block);

  void read(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
            std::span<std::byte> to) const override;
  void write(std::size_t block, CachePart part, std::span<const std::uint32_t> pages, std::size_t tokens,
             std::span<const std::byte> from) override;
  void copy(std::uint32_t from, std::uint32_t to, std::size_t tokens) override;
  void read_state(std::size_t block, std::uint32_t slot, std::span<float> to) const override;
  void write_state(std::size_t block, std::uint32_t slot, std::span<const float> from) override;
  void copy_state(std::uint32_t from, std::uint32_t to) override;

  kernels::CacheType type() const noexcept { return shapes_.front().type; }
  std::size_t page_rows() const noexcept { return shapes_.front().rows; }
  /// The keys and values of block number `index` of the runner.
  kernels::cuda::GpuCache block(std::size_t index) const noexcept;
  /// The states of a sequence in that block.
  float* state(std::size_t index, std::uint32_t slot) const noexcept;

 private:
  const kernels::CacheShape& page(std::size_t block) const { return shapes_[block - first_block_]; }
  std::size_t offset_of(std::size_t block, CachePart part) const noexcept;
  std::size_t state_offset(std::size_t block, std::uint32_t slot) const noexcept;

  std::vector<kernels::CacheShape> shapes_;
  std::size_t first_block_;
  std::vector<std::size_t> offsets_;  // where keys and values of each block begin; the last one is the number of bytes
  Buffer data_;
  std::vector<std::size_t> state_values_;
  std::vector<std::size_t> state_offsets_;  // where the slots of each block begin; the last one is the number of bytes
  Buffer states_;
  Stream copies_;
};

/// Neighbouring tokens whose caches are alike: attention runs once for them. They are single tokens of different
/// sequences, or pieces of prompts.
struct PlaceGroup {
  std::size_t first = 0, tokens = 0;
  kernels::CacheType type = kernels::CacheType::f16;
  std::size_t page_rows = 0;
  std::size_t longest = 0;  ///< no position is beyond this
  bool separate = false;    ///< each token is of another sequence
  bool paged = false;       ///< some sequence has another page than number 0

  /// The shape of a page of keys, or of values, in a block with these sizes.
  kernels::CacheShape shape_in(const Sizes& sizes) const noexcept {
    return {.type = type, .heads = sizes.kv_heads, .rows = page_rows, .head_values = sizes.head_values};
  }
};

class Places {
 public:
  Places(std::shared_ptr<Device> device, bool has_states) : device_(std::move(device)), has_states_(has_states) {}

  /// Room for a batch; true if the memory has moved, which voids recorded work.
  bool reserve(std::size_t blocks, std::span<const Segment> segments, std::size_t tokens);
  /// Writes a batch into pinned memory. REQUIRES: reserved; nothing queued before reads it any more.
  void fill(std::span<const Token> ids, std::span<const Segment> segments, std::span<const std::uint32_t> rows);
  /// Queues the copy.
  void send(Stream& stream) const;

  std::span<const PlaceGroup> groups() const noexcept { return groups_; }
  bool single() const noexcept { return sequences_ == 1; }
  /// Room for each sequence; a power of two, which changes seldom while they grow.
  std::size_t page_numbers() const noexcept { return page_numbers_; }
  const std::int32_t* ids() const noexcept;
  const std::int32_t* positions() const noexcept;
  const std::int32_t* sequences() const noexcept;  ///< null: all tokens are of the first
  const std::int32_t* rows() const noexcept;
  const std::int32_t* text_ends() const noexcept;  ///< one past the last position of each token's text
  const std::int32_t* texts() const noexcept;      ///< 0, or 1 in the second text of a pair: for each token
  /// One per sequence.
  const kernels::cuda::GpuCache* caches(std::size_t block) const noexcept;
  /// Likewise. REQUIRES: has_states.
  kernels::cuda::StateRuns states(std::size_t block) const noexcept;

 private:
  std::size_t bytes() const noexcept;
  std::size_t states_at() const noexcept { return blocks_ * sequences_ * sizeof(kernels::cuda::GpuCache); }
  std::size_t numbers_at() const noexcept {
    return states_at() + (has_states_ ? blocks_ * sequences_ * sizeof(kernels::cuda::StateRun) : 0);
  }

  std::shared_ptr<Device> device_;
  bool has_states_;
  std::size_t most_tokens_ = 0;  // most tokens of a sequence
  std::size_t blocks_ = 0, sequences_ = 0, tokens_ = 0, page_numbers_ = 0;
  PinnedMemory pinned_;
  Array<std::byte> memory_;
  std::vector<PlaceGroup> groups_;
};

}  // namespace imago::backend::cuda
