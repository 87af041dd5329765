#pragma once

#include <chrono>
#include <cstddef>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace imago {

/// What a store derives from its master, each value made once. Safe from many threads: the lock is held for lookups
/// only, never while a value is made, so different values are made side by side. A lookup of what is there allocates
/// nothing. Value has bytes().
template <class Key, class Value>
class OnceMap {
 public:
  using Pointer = std::shared_ptr<const Value>;

  /// The value of `key`. The first caller makes it; callers that come meanwhile wait for it, or get the exception that
  /// `make` threw. After a failure nothing is kept and the next caller tries again.
  template <class Make>
  Pointer get(const Key& key, Make&& make) {
    std::unique_lock lock(mutex_);
    if (const auto entry = entries_.find(key); entry != entries_.end()) {
      const std::shared_future<Pointer> value = entry->second;
      lock.unlock();
      return value.get();
    }
    std::promise<Pointer> promise;
    entries_.emplace(key, promise.get_future().share());
    lock.unlock();
    try {
      Pointer value = make();
      promise.set_value(value);
      return value;
    } catch (...) {
      drop(key);
      promise.set_exception(std::current_exception());
      throw;
    }
  }

  /// The value if it is made, else null; does not wait.
  Pointer find(const Key& key) const {
    std::lock_guard lock(mutex_);
    const auto entry = entries_.find(key);
    return entry != entries_.end() && is_made(entry->second) ? entry->second.get() : nullptr;
  }

  /// Installs a value that was made elsewhere, in place of the one of its key.
  void put(const Key& key, Pointer value) {
    std::promise<Pointer> made;
    made.set_value(std::move(value));
    std::lock_guard lock(mutex_);
    entries_[key] = made.get_future().share();
  }

  void drop(const Key& key) {
    std::lock_guard lock(mutex_);
    entries_.erase(key);
  }

  /// Drops what `condition(key)` holds for.
  template <class Condition>
  void drop_if(Condition&& condition) {
    std::lock_guard lock(mutex_);
    std::erase_if(entries_, [&](const auto& entry) { return condition(entry.first); });
  }

  void clear() {
    std::lock_guard lock(mutex_);
    entries_.clear();
  }

  /// Calls visit(key, value) for the finished values, in the order of their keys. REQUIRES: `visit` does not come back
  /// here.
  template <class Visit>
  void for_each(Visit&& visit) const {
    std::lock_guard lock(mutex_);
    for (const auto& [key, value] : entries_) {
      if (is_made(value)) visit(key, value.get());
    }
  }

  /// Bytes of the finished values.
  std::size_t bytes() const noexcept {
    std::size_t total = 0;
    for_each([&](const Key&, const Pointer& value) { total += value->bytes(); });
    return total;
  }

 private:
  static bool is_made(const std::shared_future<Pointer>& value) {
    return value.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  mutable std::mutex mutex_;
  std::map<Key, std::shared_future<Pointer>> entries_;
};

}  // namespace imago
