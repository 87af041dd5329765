#pragma once

// Runs blocks of threads of a CUDA kernel on the host, for tests where there is no GPU. Threads are fibers that run one
// after the other, each until it has to meet others of its warp or block. Asynchronous copies happen when a thread
// waits for them and not before, and every address is checked. Races between warps, and errors of nvcc, do not show up
// here.
//
// The second half defines the CUDA keywords that the matvec kernels use, and the functions of warp_ops.cuh.

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
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

#define __device__
#define __host__
#define __global__
#define __shared__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes)

struct uint2 {
  std::uint32_t x, y;
};
struct uint4 {
  std::uint32_t x, y, z, w;
};
struct float2 {
  float x, y;
};
struct float4 {
  float x, y, z, w;
};

namespace imago::kernels::cuda::emulated {

/// threadIdx and its like, of which kernels use x.
template <unsigned (*kValue)()>
struct Number {
  struct {
    operator unsigned() const { return kValue(); }
  } x;
};

template <std::size_t kCount>
void give(const std::uint32_t (&values)[kCount]) {
  std::copy(std::begin(values), std::end(values), Block::now().warp().given[Block::thread() % kLanes]);
}
inline const std::uint32_t (&taken())[4] { return Block::now().warp().taken[Block::thread() % kLanes]; }

/// What lane `lane` has of a · b after m16n8k32.
template <bool kSignedA, bool kSignedB>
void product_of_lane(const Warp& w, unsigned lane, std::uint32_t (&c)[4]) {
  const auto byte = [](std::uint32_t word, unsigned i, bool is_signed) -> std::int32_t {
    const std::uint8_t b = static_cast<std::uint8_t>(word >> 8 * i);
    return is_signed ? static_cast<std::int8_t>(b) : b;
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4, lower = i / 2, column = lane % 4 * 2 + i % 2;
    std::int32_t sum = 0;
    for (unsigned k = 0; k < 32; ++k) {
      const unsigned quarter = k % 16 / 4, upper = k / 16;
      sum += byte(w.given[row * 4 + quarter][lower + 2 * upper], k % 4, kSignedA) *
             byte(w.given[column * 4 + quarter][4 + upper], k % 4, kSignedB);
    }
    c[i] = static_cast<std::uint32_t>(sum);
  }
}

}  // namespace imago::kernels::cuda::emulated

inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::thread> threadIdx;
inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::index> blockIdx;
inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::count> gridDim;

inline imago::kernels::cuda::emulated::Number<&imago::kernels::cuda::emulated::Block::size> blockDim;

inline float __int_as_float(std::int32_t bits) { return std::bit_cast<float>(bits); }
inline float __uint_as_float(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t __float_as_uint(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float __ldcg(const float* from) { return *from; }
inline float __ldg(const float* from) { return *from; }
inline void __syncthreads() { imago::kernels::cuda::emulated::Block::now().meet_block(); }
inline void __syncwarp() {
  using namespace imago::kernels::cuda::emulated;
  Block::now().meet(Block::now().warp().meeting, kLanes, [] {});
}
template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
  using namespace imago::kernels::cuda::emulated;
  Warp& warp = Block::now().warp();
  give({std::bit_cast<std::uint32_t>(value)});
  Block::now().meet(warp.meeting, kLanes, [&] {
    for (unsigned i = 0; i < kLanes; ++i) warp.taken[i][0] = warp.given[i][0];
  });
  return std::bit_cast<T>(warp.taken[(Block::thread() % kLanes) ^ mask][0]);
}

namespace imago::kernels::cuda {

using std::max;
using std::min;

inline void keep(std::uint32_t&) {}
template <class T>
void keep(const T*&) {}

/// Kernels have one array in it, which begins at 0.
inline std::uint32_t shared_address(const void*) { return 0; }
template <int kWords>
void load_shared(std::uint32_t address, std::uint32_t* to) {
  constexpr int kTogether = std::min(kWords, 4);
  for (int i = 0; i < kWords; i += kTogether) {
    const std::byte* from =
        emulated::Block::now().shared(address + 4 * static_cast<std::uint32_t>(i), 4 * std::size_t{kTogether});
    std::memcpy(to + i, from, 4 * std::size_t{kTogether});
  }
}
template <int kBytes>
std::uint32_t load_shared_small(std::uint32_t address) {
  std::uint32_t value = 0;
  std::memcpy(&value, emulated::Block::now().shared(address, kBytes), kBytes);
  return value;
}
inline void store_shared(std::uint32_t address, std::uint32_t value) {
  std::memcpy(emulated::Block::now().shared(address, 4), &value, 4);
}
inline void store_shared(std::uint32_t address, std::uint32_t first, std::uint32_t second) {
  const std::uint32_t both[2] = {first, second};
  std::memcpy(emulated::Block::now().shared(address, 8), both, 8);
}

template <int kBytes>
void copy_async(std::uint32_t to, const std::byte* from) {
  emulated::Block::now().copy(to, from, kBytes);
}
inline void end_copies() { emulated::Block::now().end_copies(); }
template <int kLeft>
void wait_for_copies() {
  emulated::Block::now().wait_for_copies(kLeft);
}

template <bool kSignedA, bool kSignedB>
void multiply_bytes(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  using namespace emulated;
  Warp& warp = Block::now().warp();
  give({a[0], a[1], a[2], a[3], b[0], b[1]});
  Block::now().meet(warp.meeting, kLanes, [&] {
    for (unsigned i = 0; i < kLanes; ++i) product_of_lane<kSignedA, kSignedB>(warp, i, warp.taken[i]);
  });
  for (int i = 0; i < 4; ++i) c[i] += static_cast<std::int32_t>(taken()[i]);
}
template <bool kSigned>
void multiply_tile(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  multiply_bytes<kSigned, true>(c, a, b);
}
template <bool kSigned>
void multiply_tokens(std::int32_t (&c)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  multiply_bytes<true, kSigned>(c, a, b);
}

inline float power_of_2(float x) { return std::exp2(x); }

inline void let_next_in() {}
inline void wait_for_previous() {}

}  // namespace imago::kernels::cuda
