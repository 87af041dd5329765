#pragma once

// Python's view of text: characters are code points.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace imago::jinja {

/// Where the characters of a text begin. A byte that starts no UTF-8 counts as one.
class Characters {
 public:
  explicit Characters(std::string_view text);
  std::size_t size() const noexcept { return starts_.empty() ? text_.size() : starts_.size() - 1; }
  /// Characters [from, to). REQUIRES: from <= to <= size().
  std::string_view range(std::size_t from, std::size_t to) const noexcept {
    return starts_.empty() ? text_.substr(from, to - from) : text_.substr(starts_[from], starts_[to] - starts_[from]);
  }

 private:
  std::string_view text_;
  std::vector<std::size_t> starts_;  // empty: all ASCII
};

std::size_t character_count(std::string_view text) noexcept;
bool is_blank(std::string_view character) noexcept;

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// First letter large, the others small; of the text, or of each word of letters.
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

enum class Side : unsigned char { left = 1, right = 2, both = 3 };
/// Without the characters of `set` at its ends.
std::string_view strip(std::string_view text, Side side, std::string_view set);
/// Without white space at its ends.
std::string_view strip(std::string_view text, Side side);

}  // namespace imago::jinja
