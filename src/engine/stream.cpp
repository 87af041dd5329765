#include "engine/stream.h"

#include <algorithm>
#include <iterator>

namespace imago::engine {

void Bell::ring() {
  {
    const std::scoped_lock lock(mutex_);
    rung_ = true;
  }
  changed_.notify_one();
}

void Bell::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return rung_; });
  rung_ = false;
}

void Stream::put(EngineEvent event, bool counted) {
  const std::scoped_lock lock(mutex_);
  const bool replaces = !event.token && !items_.empty() && !items_.back().event.token;
  if (replaces) items_.pop_back();
  items_.push_back({std::move(event), counted});
  waiting_.store(items_.size(), std::memory_order_relaxed);
}

void Stream::end(RequestResult whole, std::exception_ptr error) {
  {
    const std::scoped_lock lock(mutex_);
    whole_ = std::move(whole);
    error_ = std::move(error);
    ended_ = true;
  }
  changed_.notify_one();
}

std::pair<std::optional<EngineEvent>, bool> Stream::take(std::optional<Clock::time_point> deadline) {
  if (is_read_) return {std::nullopt, false};
  std::unique_lock lock(mutex_);
  const auto is_ready = [&] { return ended_ || !items_.empty(); };
  if (deadline) {
    if (!changed_.wait_until(lock, *deadline, is_ready)) return {std::nullopt, true};
  } else {
    changed_.wait(lock, is_ready);
  }
  if (items_.empty()) {
    is_read_ = true;
    read_ = std::move(whole_);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    return {std::nullopt, false};
  }
  Item item = std::move(items_.front());
  items_.pop_front();
  const bool was_full = is_full();
  waiting_.store(items_.size(), std::memory_order_relaxed);
  lock.unlock();
  if (was_full) bell_->ring();
  if (item.event.token) {
    read_.text += item.event.token->text;
    if (item.counted) read_.ids.push_back(item.event.token->id);
  }
  return {std::move(item.event), true};
}

void Stream::abandon() {
  cancel();
  if (std::exchange(is_read_, true)) return;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_; });
  whole_.text = std::move(read_.text);
  whole_.ids = std::move(read_.ids);
  whole_.end = EndReason::cancelled;
  if (whole_.ids.empty() && whole_.text.empty()) whole_.prompt_tokens = 0;  // as far as the reader knows
  read_ = std::move(whole_);
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void Stream::cancel() noexcept {
  cancelled_.store(true, std::memory_order_relaxed);
  bell_->ring();
}

Waker::~Waker() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Waker::wake(std::vector<std::shared_ptr<Stream>>& readers) {
  if (readers.size() <= kFew) {
    for (const std::shared_ptr<Stream>& reader : readers) reader->wake();
    readers.clear();
    return;
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  {
    const std::scoped_lock lock(mutex_);
    if (asleep_.empty()) {
      std::swap(asleep_, readers);
    } else {
      std::ranges::move(readers, std::back_inserter(asleep_));
    }
  }
  readers.clear();
  changed_.notify_one();
}

void Waker::run() {
  std::vector<std::shared_ptr<Stream>> now;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !asleep_.empty(); });
    if (asleep_.empty()) return;
    std::swap(now, asleep_);
    lock.unlock();
    for (const std::shared_ptr<Stream>& reader : now) reader->wake();
    now.clear();
    lock.lock();
  }
}

}  // namespace imago::engine
