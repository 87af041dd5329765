#pragma once

// Pages of a cache by number, and who needs them.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace imago::engine {

using Page = std::uint32_t;

/// Running requests hold pages, any number of them the same one. Besides, a page may be kept for requests to come,
/// until somebody needs the room. One that is neither held nor kept is free. Not thread-safe.
class PagePool {
 public:
  explicit PagePool(std::size_t pages) : entries_(pages) {
    free_.reserve(pages);
    for (std::size_t i = pages; i-- > 0;) free_.push_back(static_cast<Page>(i));
  }

  std::size_t size() const noexcept { return entries_.size(); }
  std::size_t held() const noexcept { return held_; }
  std::size_t free() const noexcept { return free_.size(); }
  /// Kept and not held.
  std::size_t cached() const noexcept { return size() - held_ - free(); }

  /// A free page, held once: the one that became free last, whose memory is warm. Empty if none is free.
  std::optional<Page> take() {
    if (free_.empty()) return std::nullopt;
    const Page page = free_.back();
    free_.pop_back();
    hold(page);
    return page;
  }
  void hold(Page page) noexcept {
    if (entries_[page].holders++ == 0) ++held_;
  }
  void drop(Page page) noexcept {
    assert(is_held(page));
    if (--entries_[page].holders != 0) return;
    --held_;
    if (!entries_[page].kept) free_.push_back(page);  // within what was reserved
  }
  bool is_held(Page page) const noexcept { return entries_[page].holders != 0; }

  /// REQUIRES: held, and not kept yet.
  void keep(Page page) noexcept {
    assert(is_held(page) && !entries_[page].kept);
    entries_[page].kept = true;
  }
  void keep_no_longer(Page page) noexcept {
    assert(entries_[page].kept);
    entries_[page].kept = false;
    if (!is_held(page)) free_.push_back(page);
  }

 private:
  struct Entry {
    std::uint32_t holders = 0;
    bool kept = false;
  };
  std::vector<Entry> entries_;
  std::vector<Page> free_;
  std::size_t held_ = 0;
};

}  // namespace imago::engine
