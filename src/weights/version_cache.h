#pragma once

#include <cstddef>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>

#include "imago/weights.h"

namespace imago {

/// The versions of one store, each made once. Safe from many threads: the lock is held for lookups only, never while a
/// version is made, so different schemes are made side by side.
class VersionCache {
 public:
  using VersionPtr = std::shared_ptr<const Version>;

  /// The version of `scheme`. The first caller makes it; callers that come meanwhile wait for it, or get the exception
  /// that `make` threw. After a failure nothing is cached and the next caller tries again.
  VersionPtr get(const Scheme& scheme, const std::function<VersionPtr()>& make);
  /// The version if it is made, else null; does not wait.
  VersionPtr find(const Scheme& scheme) const;
  /// Installs a version that was made elsewhere, in place of the one of its scheme.
  void put(VersionPtr version);
  void drop(const Scheme& scheme);
  void clear();
  /// Bytes of the finished versions.
  std::size_t bytes() const noexcept;

 private:
  mutable std::mutex mutex_;
  std::map<Scheme, std::shared_future<VersionPtr>> versions_;
};

}  // namespace imago
