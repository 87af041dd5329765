#pragma once

// Elements of a list by their names.

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

namespace imago::files {

/// Finds the elements of a vector by name. Views the vector and the names in it: the index may be moved together with
/// the vector, but holds only as long as the vector is not changed.
template <class T>
class NameIndex {
 public:
  NameIndex() = default;
  /// `name` gives the name of an element: a member, or a function.
  template <class Name>
  NameIndex(const std::vector<T>& list, Name name) {
    entries_.reserve(list.size());
    for (const T& element : list) entries_.emplace_back(std::invoke(name, element), &element);
    std::ranges::sort(entries_);
  }
  NameIndex(NameIndex&&) noexcept = default;  // a copy would view the original's vector
  NameIndex& operator=(NameIndex&&) noexcept = default;

  /// Null if there is none of that name.
  const T* find(std::string_view name) const noexcept {
    const auto found = std::ranges::lower_bound(entries_, name, {}, &Entry::first);
    return found != entries_.end() && found->first == name ? found->second : nullptr;
  }

  /// The second of two elements with the same name; null if all differ.
  const T* find_repeated() const noexcept {
    const auto found = std::ranges::adjacent_find(entries_, {}, &Entry::first);
    return found != entries_.end() ? std::next(found)->second : nullptr;
  }

 private:
  using Entry = std::pair<std::string_view, const T*>;
  std::vector<Entry> entries_;  // sorted
};

}  // namespace imago::files
