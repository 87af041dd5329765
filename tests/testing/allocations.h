#pragma once

// Counts the allocations of a test program. Include it in one file of the program: it replaces operator new.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace imago::testing {

inline std::atomic<bool> counts_allocations{false};
inline std::atomic<int> allocations{0};

/// What `body` allocates.
template <class Body>
int allocations_of(Body&& body) {
  allocations = 0;
  counts_allocations = true;
  body();
  counts_allocations = false;
  return allocations;
}

/// The fewest over several calls: a thread of the pool allocates its scratch memory when it first gets work, which may
/// be in a later call.
template <class Body>
int fewest_allocations_of(Body&& body) {
  int fewest = std::numeric_limits<int>::max();
  for (int i = 0; i < 10 && fewest != 0; ++i) fewest = std::min(fewest, allocations_of(body));
  return fewest;
}

}  // namespace imago::testing

// Not inlined: GCC would see `free` of what `new` gave, and complain.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  if (imago::testing::counts_allocations) ++imago::testing::allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
