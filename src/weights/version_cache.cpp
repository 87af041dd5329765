#include "weights/version_cache.h"

#include <chrono>
#include <utility>

namespace imago {

namespace {

bool is_made(const std::shared_future<VersionCache::VersionPtr>& version) {
  return version.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

VersionCache::VersionPtr VersionCache::get(const Scheme& scheme, const std::function<VersionPtr()>& make) {
  std::promise<VersionPtr> promise;
  {
    std::unique_lock lock(mutex_);
    const auto [entry, is_first] = versions_.try_emplace(scheme);
    if (!is_first) {
      const std::shared_future<VersionPtr> version = entry->second;
      lock.unlock();
      return version.get();
    }
    entry->second = promise.get_future().share();
  }
  try {
    VersionPtr version = make();
    promise.set_value(version);
    return version;
  } catch (...) {
    drop(scheme);
    promise.set_exception(std::current_exception());
    throw;
  }
}

VersionCache::VersionPtr VersionCache::find(const Scheme& scheme) const {
  std::lock_guard lock(mutex_);
  const auto entry = versions_.find(scheme);
  return entry != versions_.end() && is_made(entry->second) ? entry->second.get() : nullptr;
}

void VersionCache::put(VersionPtr version) {
  const Scheme scheme = version->scheme();
  std::promise<VersionPtr> made;
  made.set_value(std::move(version));
  std::lock_guard lock(mutex_);
  versions_[scheme] = made.get_future().share();
}

void VersionCache::drop(const Scheme& scheme) {
  std::lock_guard lock(mutex_);
  versions_.erase(scheme);
}

void VersionCache::clear() {
  std::lock_guard lock(mutex_);
  versions_.clear();
}

std::size_t VersionCache::bytes() const noexcept {
  std::lock_guard lock(mutex_);
  std::size_t total = 0;
  for (const auto& [scheme, version] : versions_) {
    if (is_made(version)) total += version.get()->bytes();
  }
  return total;
}

}  // namespace imago
