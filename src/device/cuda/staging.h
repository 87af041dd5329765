#pragma once

// Copies between ordinary host memory and a device. The device reads and writes only pinned memory by itself; given
// other memory the driver goes through a small buffer of its own, one thread copying. Here all threads fill one half of
// a pinned buffer while the other half travels.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "device/cuda/stream.h"

namespace imago::cuda {

/// One per device, which must be current in every call. Not thread-safe.
class Staging {
 public:
  Staging();  ///< of the current device
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Return when the copy is done.
  void upload(std::span<const std::byte> from, std::byte* to);
  void download(const std::byte* from, std::span<std::byte> to);
  void fill_zero(std::byte* memory, std::size_t bytes);

 private:
  void reserve(std::size_t bytes);

  struct Half {
    PinnedMemory memory;
    CUevent_st* travelled = nullptr;
  };
  CUstream_st* stream_ = nullptr;
  std::array<Half, 2> halves_;
};

}  // namespace imago::cuda
