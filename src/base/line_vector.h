#pragma once

// Vectors that begin at a cache line. Those of std::allocator begin 16 bytes after one, and then every wide load and
// store of a kernel touches two lines.

#include <cstddef>
#include <new>
#include <span>
#include <vector>

namespace imago {

template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) noexcept {}

  T* allocate(std::size_t count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(T)) throw std::bad_array_new_length();
    return static_cast<T*>(::operator new(count * sizeof(T), kLine));
  }
  void deallocate(T* memory, std::size_t) noexcept { ::operator delete(memory, kLine); }

  template <class U>
  bool operator==(const LineAllocator<U>&) const noexcept {
    return true;
  }
};

template <class T>
using LineVector = std::vector<T, LineAllocator<T>>;

/// The first `count` values of memory that is kept for the next time, after growing where there are fewer.
template <class T, class Allocator>
std::span<T> sized(std::vector<T, Allocator>& memory, std::size_t count) {
  if (memory.size() < count) memory.resize(count);
  return std::span(memory).first(count);
}

}  // namespace imago
