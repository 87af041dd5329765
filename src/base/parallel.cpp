#include "base/parallel.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/system.h"
#include "imago/error.h"

namespace imago {

namespace {

thread_local bool inside_region = false;

void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// One region at a time: a new generation announces it, and it ends when all of its parts are done, whoever did them. A
/// worker that the system has put aside is not waited for unless it holds a part: on a busy machine the others go on
/// without it. Workers spin for a short while (regions of a model follow each other within microseconds), then sleep on
/// the condition variable.
class Pool {
 public:
  ~Pool() { stop(); }

  int threads() {
    std::lock_guard lock(configure_);
    if (threads_ == 0) {
      std::lock_guard region(region_);
      start(usable_cores());
    }
    return threads_;
  }

  void set_threads(int threads) {
    std::scoped_lock lock(configure_, region_);  // a worker that stops amid a region would never count itself out
    if (threads == threads_) return;
    stop();
    start(threads);
  }

  void run(std::size_t parts, void (*part)(void*, std::size_t), void* context) {
    // Nested calls, and calls while another thread owns the pool, do their work alone: correct, never a deadlock.
    if (inside_region || parts > kMostParts) return run_alone(parts, part, context);
    std::unique_lock region(region_, std::try_to_lock);
    if (!region.owns_lock()) return run_alone(parts, part, context);
    inside_region = true;
    part_ = part;
    context_ = context;
    parts_ = parts;
    done_.store(0, std::memory_order_relaxed);
    {
      std::lock_guard lock(sleep_);
      const std::uint64_t next = generation_of(claim_.load(std::memory_order_relaxed)) + 1;
      claim_.store(next << kPartBits | parts, std::memory_order_release);
    }
    wake_.notify_all();
    work();
    // With more threads than cores a worker may need this core to end: after a while, offer it.
    for (int spin = 0; done_.load(std::memory_order_acquire) != parts; ++spin) {
      if (spin < kSpins) {
        relax();
      } else {
        std::this_thread::yield();
      }
    }
    inside_region = false;
    std::exception_ptr failure = std::exchange(failure_, nullptr);
    region.unlock();
    if (failure) std::rethrow_exception(failure);
  }

 private:
  static constexpr int kSpins = 20'000;  // about 0.3 ms: longer than the gap between two regions of a decode step

  /// Fewer threads than wished for if the system refuses some.
  void start(int threads) {
    stopping_.store(false, std::memory_order_relaxed);
    const std::uint64_t seen = generation_of(claim_.load(std::memory_order_relaxed));
    workers_.reserve(static_cast<std::size_t>(threads - 1));
    try {
      while (static_cast<int>(workers_.size()) < threads - 1) workers_.emplace_back([this, seen] { serve(seen); });
    } catch (const std::system_error&) {
    }
    threads_ = static_cast<int>(workers_.size()) + 1;
  }

  void stop() {
    {
      std::lock_guard lock(sleep_);
      stopping_.store(true, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void serve(std::uint64_t seen) {
    inside_region = true;
    for (;;) {
      for (int spin = 0; spin < kSpins && idle(seen); ++spin) relax();
      if (idle(seen)) {
        std::unique_lock lock(sleep_);
        wake_.wait(lock, [&] { return !idle(seen); });
      }
      if (stopping_.load(std::memory_order_acquire)) return;
      seen = generation_of(claim_.load(std::memory_order_acquire));
      work();
    }
  }

  bool idle(std::uint64_t seen) const noexcept {
    return generation_of(claim_.load(std::memory_order_acquire)) == seen && !stopping_.load(std::memory_order_acquire);
  }

  /// As a region does: every part runs, whatever the others throw.
  static void run_alone(std::size_t parts, void (*part)(void*, std::size_t), void* context) {
    std::exception_ptr failure;
    for (std::size_t i = 0; i < parts; ++i) {
      try {
        part(context, i);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

  /// Takes parts until none are left. A region does not end before its last part is done, so part_, context_ and parts_
  /// are those of the generation that a part was taken from. Whoever comes late finds no part left, and touches
  /// nothing.
  void work() noexcept {
    for (;;) {
      std::uint64_t claim = claim_.load(std::memory_order_acquire);
      do {
        if (parts_left(claim) == 0) return;
      } while (!claim_.compare_exchange_weak(claim, claim - 1, std::memory_order_acquire, std::memory_order_acquire));
      try {
        part_(context_, parts_ - parts_left(claim));
      } catch (...) {
        std::lock_guard lock(sleep_);
        if (!failure_) failure_ = std::current_exception();
      }
      done_.fetch_add(1, std::memory_order_release);
    }
  }

  // A generation and how many of its parts nobody has taken, in one word: no part is taken from a region that has
  // ended.
  static constexpr int kPartBits = 32;
  static constexpr std::uint64_t kMostParts = (std::uint64_t{1} << kPartBits) - 1;
  static std::uint64_t generation_of(std::uint64_t claim) noexcept { return claim >> kPartBits; }
  static std::size_t parts_left(std::uint64_t claim) noexcept { return static_cast<std::size_t>(claim & kMostParts); }

  std::mutex configure_;
  std::mutex region_;
  std::mutex sleep_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
  int threads_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> claim_{0};  // generation << kPartBits | parts left
  std::atomic<std::size_t> done_{0};
  void (*part_)(void*, std::size_t) = nullptr;
  void* context_ = nullptr;
  std::size_t parts_ = 0;
  std::exception_ptr failure_;
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

namespace detail {
void run_parts(std::size_t parts, void (*part)(void*, std::size_t), void* context) { pool().run(parts, part, context); }
}  // namespace detail

int pool_threads() { return inside_region ? 1 : pool().threads(); }

void set_pool_threads(int threads) { pool().set_threads(threads); }

int allowed_cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? std::max(CPU_COUNT(&set), 1) : 1;
}

int usable_cores() {
  int cores = allowed_cores();
  if (const auto quota = inspect_machine().core_quota) cores = std::min(cores, static_cast<int>(std::ceil(*quota)));
  return std::max(cores, 1);
}

void set_thread_count(int threads) {
  if (threads < 0 || threads > 1024) throw UsageError("the number of threads must be between 0 (all cores) and 1024");
  if (inside_region) throw UsageError("the number of threads cannot change inside parallel work");
  set_pool_threads(threads == 0 ? usable_cores() : threads);
}

int thread_count() { return pool_threads(); }

}  // namespace imago
