#pragma once

// One fork-join pool for the process.

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>

namespace imago {

namespace detail {
/// Runs part(context, index) for index 0 … parts-1 on the pool; returns when all are done; rethrows the first
/// exception.
void run_parts(std::size_t parts, void (*part)(void* context, std::size_t index), void* context);
}  // namespace detail

/// Threads that `parallel_for` uses, the calling one included.
int pool_threads();
/// Waits for parallel work of other threads to end. The system may grant fewer threads: see pool_threads.
/// REQUIRES: 1 <= threads <= 1024, and not called from inside a body of parallel_for.
void set_pool_threads(int threads);
/// Cores that the affinity mask of this process holds.
int allowed_cores();
/// Cores this process may use: its affinity mask, and no more than its control group grants.
int usable_cores();

// Public, see imago/system.h.
void set_thread_count(int threads);
int thread_count();

/// Splits [0, count) into one contiguous range per thread, each a multiple of `grain` long but the last, and calls
/// body(begin, end) for each. The split depends only on count, grain and the number of threads. A call from inside a
/// body runs on its own thread, in one range. The first exception thrown by a body is rethrown here once all have
/// ended. REQUIRES: grain > 0.
template <class Body>
void parallel_for(std::size_t count, std::size_t grain, Body&& body) {
  if (count == 0) return;
  const std::size_t grains = (count - 1) / grain + 1;
  const std::size_t threads = static_cast<std::size_t>(pool_threads());
  const std::size_t parts = grains < threads ? grains : threads;
  if (parts <= 1) {
    body(std::size_t{0}, count);
    return;
  }
  struct Context {
    std::remove_reference_t<Body>& body;
    std::size_t count, grain, grains, parts;
  } context{body, count, grain, grains, parts};
  detail::run_parts(
      parts,
      [](void* opaque, std::size_t index) {
        const Context& c = *static_cast<const Context*>(opaque);
        const std::size_t begin = c.grains * index / c.parts * c.grain;
        const std::size_t end = index + 1 == c.parts ? c.count : c.grains * (index + 1) / c.parts * c.grain;
        if (begin < end) c.body(begin, end);
      },
      &context);
}

/// Calls body(row) for each row on all threads, each thread at least `grain` values at a time: some 10 µs of additions.
template <class Body>
void parallel_rows(std::size_t rows, std::size_t values_per_row, Body&& body, std::size_t grain = 16384) {
  parallel_for(rows, std::max<std::size_t>(1, grain / std::max<std::size_t>(1, values_per_row)),
               [&](std::size_t begin, std::size_t end) {
                 for (std::size_t row = begin; row < end; ++row) body(row);
               });
}

/// The sum of part(begin, end) over ranges that together are [0, count), on all threads. The ranges depend on `count`
/// and `grain` alone and are added in order, so the sum is the same for every number of threads. REQUIRES: grain > 0.
template <class Part>
double ordered_sum(std::size_t count, std::size_t grain, Part&& part) {
  constexpr std::size_t kMostRanges = 64;  // more than most machines have cores; no allocation
  if (count == 0) return 0;
  const std::size_t ranges = std::min((count - 1) / grain + 1, kMostRanges);
  std::array<double, kMostRanges> sums{};
  parallel_for(ranges, 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) sums[i] = part(count * i / ranges, count * (i + 1) / ranges);
  });
  double total = 0;
  for (std::size_t i = 0; i < ranges; ++i) total += sums[i];
  return total;
}

/// For uneven work: a shared counter hands out one grain of [0, count) after the other to whichever thread is free, and
/// body(begin, end) is called once for each; only the last may be shorter. The ranges do not depend on the number of
/// threads, their order does. A call from inside a body runs on its own thread, in order. The first exception thrown by
/// a body is rethrown here once all have ended. REQUIRES: grain > 0, and worth a microsecond.
template <class Body>
void parallel_for_dynamic(std::size_t count, std::size_t grain, Body&& body) {
  if (count <= grain) {  // not worth waking another thread
    if (count != 0) body(std::size_t{0}, count);
    return;
  }
  pool_threads();  // starts the pool
  struct Context {
    std::remove_reference_t<Body>& body;
    std::size_t count, grain;
  } context{body, count, grain};
  detail::run_parts((count - 1) / grain + 1,
                    [](void* opaque, std::size_t index) {
                      const Context& c = *static_cast<const Context*>(opaque);
                      const std::size_t begin = index * c.grain;
                      c.body(begin, c.count - begin < c.grain ? c.count : begin + c.grain);
                    },
                    &context);
}

}  // namespace imago
