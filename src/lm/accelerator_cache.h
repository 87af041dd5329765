#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace imago::lm {

enum class CachePart : std::uint8_t { keys, values };

/// Keys and values of one sequence in the blocks that an accelerator runs. It must not outlive the accelerator.
class AcceleratorCache {
 public:
  virtual ~AcceleratorCache() = default;

  /// The rows of the first `tokens` tokens of a block, head after head, as files have them; the block is counted from
  /// the first one of the model. Throw DeviceError.
  virtual void read(std::size_t block, CachePart part, std::size_t tokens, std::span<std::byte> to) const = 0;
  virtual void write(std::size_t block, CachePart part, std::size_t tokens, std::span<const std::byte> from) = 0;

 protected:
  AcceleratorCache() = default;
  AcceleratorCache(const AcceleratorCache&) = default;
  AcceleratorCache& operator=(const AcceleratorCache&) = default;
};

}  // namespace imago::lm
