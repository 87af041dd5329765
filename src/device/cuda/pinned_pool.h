#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace imago::cuda {

/// Pinned host memory that was given back and waits for its next user: pinning costs the system about as long as a copy
/// over the bus, and a model is uploaded through the same two buffers for each of its matrices. Thread-safe.
class PinnedPool {
 public:
  /// At least `bytes` bytes. Throws DeviceError.
  std::byte* take(std::size_t bytes);
  void give_back(std::byte* memory) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> sizes_;  // of all that is out or waiting
  std::multimap<std::size_t, std::byte*> waiting_;
  std::size_t waiting_bytes_ = 0;
};

}  // namespace imago::cuda
