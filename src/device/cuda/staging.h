#pragma once

// Copies between pageable host memory and a device. The device accesses only pinned memory directly; for other memory
// the driver copies through a small buffer of its own, with one thread. Staging uses all threads: they fill one half of
// a pinned buffer while the other half is transferred.

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "device/cuda/stream.h"

namespace imago::cuda {

/// One per device, which must be current in every call. Not thread-safe.
class Staging {
 public:
  Staging();  ///< for the current device
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// These return when the copy is done.
  void upload(std::span<const std::byte> from, std::byte* to);
  void download(const std::byte* from, std::span<std::byte> to);
  void fill_zero(std::byte* memory, std::size_t bytes);

 private:
  void reserve(std::size_t bytes);

  struct Half {
    PinnedMemory memory;
    CUevent_st* transferred = nullptr;
  };
  CUstream_st* stream_ = nullptr;
  std::array<Half, 2> halves_;
};

}  // namespace imago::cuda
