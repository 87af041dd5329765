#pragma once

// A block of threads on the host, for tests of kernels where there is no GPU. Threads are fibers that run one after the
// other, each until it has to meet others of its warp or block. Asynchronous copies happen when they are waited for and
// not before, and every address is checked.
//
// What this cannot show is races between warps, and what the compiler of a GPU makes of a kernel's text.

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace imago::kernels::cuda::emulated {

inline constexpr unsigned kLanes = 32;
inline constexpr std::size_t kStackBytes = std::size_t{64} << 10;

/// A place where threads wait for each other.
struct Meeting {
  unsigned arrived = 0, round = 0;
};

struct Copy {
  std::uint32_t to;
  const std::byte* from;
  std::size_t bytes;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  std::vector<Copy> open;                // copies of the group that has not ended
  std::deque<std::vector<Copy>> groups;  // that were not waited for
  bool is_done = false;
};

/// What its lanes give when they meet, and what each takes away.
struct Warp {
  Meeting meeting;
  std::uint32_t given[kLanes][6], taken[kLanes][4];
};

class Block {
 public:
  /// Of `blocks` that run after each other. `readable`: memory that asynchronous copies may come from.
  static void run_all(unsigned blocks, unsigned threads, std::size_t shared_bytes,
                      std::vector<std::span<const std::byte>> readable, std::function<void()> kernel) {
    problem_.clear();
    for (unsigned b = 0; b < blocks && problem_.empty(); ++b) {
      Block block(threads, shared_bytes, readable, kernel);
      now_ = &block;
      index_ = b;
      count_ = blocks;
      block.run();
      now_ = nullptr;
    }
  }
  /// The first thing that went wrong in the blocks of the last call; empty: nothing.
  static const std::string& problem() { return problem_; }

  static Block& now() { return *now_; }
  static unsigned thread() { return now_->thread_; }
  static unsigned index() { return index_; }
  static unsigned count() { return count_; }
  static unsigned size() { return now_->threads(); }

  unsigned threads() const { return static_cast<unsigned>(threads_.size()); }
  Warp& warp() { return warps_[thread_ / kLanes]; }

  /// The last of `count` threads to come calls `last`, then all go on.
  template <class Last>
  void meet(Meeting& meeting, unsigned count, Last last) {
    const unsigned round = meeting.round;
    if (++meeting.arrived == count) {
      last();
      meeting.arrived = 0;
      ++meeting.round;
      ++progress_;
    } else {
      while (meeting.round == round) step_aside();
    }
  }
  void meet_block() {
    meet(meeting_, threads(), [] {});
  }

  /// Bytes of shared memory; some that nobody reads if the address is wrong.
  std::byte* shared(std::uint32_t address, std::size_t bytes) {
    if (address % bytes == 0 && address + bytes <= shared_.size()) return shared_.data() + address;
    complain("shared memory at " + std::to_string(address) + ", " + std::to_string(bytes) + " bytes");
    return nowhere_;
  }

  void copy(std::uint32_t to, const std::byte* from, std::size_t bytes) {
    const auto holds = [&](std::span<const std::byte> memory) {
      return from >= memory.data() && from + bytes <= memory.data() + memory.size();
    };
    if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0 || std::ranges::none_of(readable_, holds)) {
      return complain("a copy of " + std::to_string(bytes) + " bytes from outside the matrix, or from between");
    }
    shared(to, bytes);
    threads_[thread_].open.push_back({to, from, bytes});
  }
  void end_copies() {
    Thread& t = threads_[thread_];
    t.groups.push_back(std::move(t.open));
    t.open.clear();
  }
  void wait_for_copies(std::size_t left) {
    Thread& t = threads_[thread_];
    for (; t.groups.size() > left; t.groups.pop_front()) {
      for (const Copy& c : t.groups.front()) std::memcpy(shared(c.to, c.bytes), c.from, c.bytes);
    }
  }

 private:
  Block(unsigned threads, std::size_t shared_bytes, std::vector<std::span<const std::byte>> readable,
        std::function<void()> kernel)
      : kernel_(std::move(kernel)),
        readable_(std::move(readable)),
        shared_(shared_bytes, std::byte{0xCD}),
        threads_(threads),
        warps_(threads / kLanes) {}

  void run() {
    for (Thread& t : threads_) {
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.get();
      t.context.uc_stack.ss_size = kStackBytes;
      t.context.uc_link = &scheduler_;
      makecontext(&t.context, &Block::run_thread, 0);
    }
    for (bool goes_on = true; goes_on;) {
      const std::size_t before = progress_;
      goes_on = false;
      for (thread_ = 0; thread_ < threads(); ++thread_) {
        if (threads_[thread_].is_done) continue;
        goes_on = true;
        swapcontext(&scheduler_, &threads_[thread_].context);
      }
      if (goes_on && progress_ == before) return complain("threads wait for others that do not come");
    }
  }
  static void run_thread() {
    now_->kernel_();
    now_->threads_[now_->thread_].is_done = true;
    ++now_->progress_;
  }
  void step_aside() { swapcontext(&threads_[thread_].context, &scheduler_); }
  static void complain(std::string what) {
    if (problem_.empty()) problem_ = "block " + std::to_string(index_) + ": " + std::move(what);
  }

  inline static Block* now_ = nullptr;
  inline static unsigned index_ = 0, count_ = 0;
  inline static std::string problem_;

  std::function<void()> kernel_;
  std::vector<std::span<const std::byte>> readable_;
  std::vector<std::byte> shared_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  Meeting meeting_;
  ucontext_t scheduler_;
  unsigned thread_ = 0;
  std::size_t progress_ = 0;  // meetings that came about, threads that have ended
  alignas(16) std::byte nowhere_[16];
};

}  // namespace imago::kernels::cuda::emulated
