#include "convert/write_behind.h"

#include <utility>

#include "base/file.h"

namespace imago::convert {

namespace {
constexpr std::size_t kBatches = 3;
}

WriteBehind::WriteBehind(Write write) : write_(std::move(write)), free_(kBatches) {
  thread_ = std::thread([this] { serve(); });
}

WriteBehind::~WriteBehind() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  thread_.join();
}

Batch WriteBehind::take() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  Batch batch = std::move(free_.back());
  free_.pop_back();
  return batch;
}

void WriteBehind::give(Batch batch) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(batch));
  }
  changed_.notify_all();
}

void WriteBehind::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return (waiting_.empty() && !writing_) || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

void WriteBehind::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    if (stopping_ || failure_) return;
    Batch batch = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    writing_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      for (const Slot& slot : batch.slots) write_(slot.name, slot.bytes);
    } catch (...) {
      failure = std::current_exception();
    }
    for (const std::span<const std::byte> source : batch.sources) release_pages(source);
    lock.lock();
    writing_ = false;
    failure_ = failure;
    free_.push_back(std::move(batch));
    changed_.notify_all();
  }
}

}  // namespace imago::convert
