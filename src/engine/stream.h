#pragma once

// What a request tells, on its way from the engine to whoever reads.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "imago/engine.h"

namespace imago::engine {

/// Wakes the thread of an engine, which may be gone already.
class Bell {
 public:
  void ring();
  /// Waits until somebody rings, or has rung since the last call.
  void wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool rung_ = false;
};

/// Events of one request: the engine writes, one thread reads, any thread cancels.
class Stream {
 public:
  /// A reader may be so many events behind; then the request waits for it, and the others go on without.
  static constexpr std::size_t kMostEvents = 4096;

  explicit Stream(std::shared_ptr<Bell> bell) : bell_(std::move(bell)) {}

  // The engine's side.

  /// `counted`: the token is among the ids of the answer. Progress that nobody has read gives way to later progress.
  /// The reader learns of it by `wake`.
  void put(EngineEvent event, bool counted);
  void wake() noexcept { changed_.notify_one(); }
  /// Nothing comes after this. `error`: what ended it, or null.
  void end(RequestResult whole, std::exception_ptr error);
  bool is_cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }
  /// Whether the reader is too far behind.
  bool is_full() const noexcept { return waiting_.load(std::memory_order_relaxed) >= kMostEvents; }

  // The other side.

  using Clock = std::chrono::steady_clock;
  /// The next event, empty at the end or at the deadline; whether more may come. Throws the error once.
  std::pair<std::optional<EngineEvent>, bool> take(std::optional<Clock::time_point> deadline);
  /// Cancels, and waits for the end. What was not read is dropped: the result is what was read.
  void abandon();
  void cancel() noexcept;
  const RequestResult& read() const noexcept { return read_; }

 private:
  struct Item {
    EngineEvent event;
    bool counted;
  };

  std::shared_ptr<Bell> bell_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<std::size_t> waiting_ = 0;  // items
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool ended_ = false;
  RequestResult whole_;
  std::exception_ptr error_;

  RequestResult read_;  // the reader's own
  bool is_read_ = false;
};

/// Wakes readers. Many are woken by a thread of its own while the next step runs: each takes a call of the system, and
/// a GPU would wait for all of them.
class Waker {
 public:
  Waker() = default;
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;
  ~Waker();

  /// Empties the list.
  void wake(std::vector<std::shared_ptr<Stream>>& readers);

 private:
  static constexpr std::size_t kFew = 4;

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Stream>> asleep_;
  bool stopping_ = false;
  std::thread thread_;  // from the first time that there are many
};

}  // namespace imago::engine
