#include "device/cuda/pinned_pool.h"

#include <cuda_runtime_api.h>

#include "device/cuda/check.h"

namespace imago::cuda {

namespace {

constexpr std::size_t kMostWaiting = std::size_t{64} << 20;
constexpr std::size_t kGranule = std::size_t{64} << 10;  // so that matrices of nearly one size share their buffers

}  // namespace

std::byte* PinnedPool::take(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::size_t wanted = (bytes + kGranule - 1) / kGranule * kGranule;
  if (const auto found = waiting_.lower_bound(wanted); found != waiting_.end() && found->first / 2 <= wanted) {
    std::byte* const memory = found->second;
    waiting_bytes_ -= found->first;
    waiting_.erase(found);
    return memory;
  }
  void* made = nullptr;
  // Portable: pinned for every device, whichever is current now.
  check(cudaHostAlloc(&made, wanted, cudaHostAllocPortable), "pinned host memory");
  std::byte* const memory = static_cast<std::byte*>(made);
  sizes_.emplace(memory, wanted);
  return memory;
}

void PinnedPool::give_back(std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = sizes_.find(memory);
  if (waiting_bytes_ + found->second <= kMostWaiting) {
    try {
      waiting_.emplace(found->second, memory);
      waiting_bytes_ += found->second;
      return;
    } catch (...) {  // no memory for the entry: then it does not wait
    }
  }
  sizes_.erase(found);
  static_cast<void>(cudaFreeHost(memory));
}

}  // namespace imago::cuda
