#pragma once

// Python's operations on text, in which characters are code points, and values as text.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "jinja/run.h"

namespace imago::jinja {

/// The characters of a text. A byte of invalid UTF-8 counts as one.
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

/// The code point of a character, which `Characters` or a position in a text gave; -1 if it is invalid UTF-8.
std::int32_t code_of(std::string_view character) noexcept;
/// Appends a code point; surrogates and codes beyond Unicode become U+FFFD.
void append_utf8(std::string& text, std::uint32_t code);
std::size_t character_count(std::string_view text) noexcept;
bool is_blank(std::string_view character) noexcept;

std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// First letter in upper case, the others in lower case; `title` does so for each word.
std::string capitalize(std::string_view text);
std::string title(std::string_view text);

enum class Side : unsigned char { left = 1, right = 2, both = 3 };
/// Removes the characters of `set` at the ends.
std::string_view strip(std::string_view text, Side side, std::string_view set);
/// Removes white space at the ends.
std::string_view strip(std::string_view text, Side side);

/// Replaces at most `limit` times, or all if that is negative.
std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);

/// Splits at white space if there is no separator; at most `limit` times, from the left or the right, if not negative.
Value split(Run& run, std::string_view text, const std::optional<std::string>& separator, std::int64_t limit,
            bool from_right);

/// str() of each item, with the separator between them.
std::string joined(Run& run, const std::vector<Value>& items, std::string_view separator);

/// str.format() with {}, {0} and {name}; format specifications are not supported.
std::string formatted(Run& run, std::string_view format, const Arguments& arguments);

/// str(value); a string is not copied.
class TextOf {
 public:
  TextOf(Run& run, const Value& value) : made_(value.is_string() ? std::string() : to_text(run, value)) {
    text_ = value.is_string() ? std::string_view(*value.string()) : made_;
    run.touch(text_.size());
  }
  std::string_view get() const noexcept { return text_; }

 private:
  std::string made_;
  std::string_view text_;
};

// What filters and methods have in common.

/// upper() and the like.
template <std::string (*change)(std::string_view)>
Value change_text(Run& run, const Value& input, Arguments&) {
  const TextOf text(run, input);
  run.touch(text.get().size() * 8);
  return run.text(change(text.get()));
}

/// strip() and the like, with the characters to strip as an optional argument.
template <Side side>
Value strip_text(Run& run, const Value& input, Arguments& arguments) {
  const TextOf text(run, input);
  const Value* set = arguments.find_set(0, "chars");
  return run.text(std::string(set ? strip(text.get(), side, expect_string(run, *set, "the characters to strip"))
                                  : strip(text.get(), side)));
}

/// A list of tuples of key and value.
Value dict_items(Run& run, const Dict& dict);

/// Builds a string within the size limit.
class TextBuilder {
 public:
  explicit TextBuilder(Run& run) : run_(run) {}
  TextBuilder& operator<<(std::string_view text) {
    run_.expect_text_size(text_.size() + text.size());
    text_ += text;
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  Run& run_;
  std::string text_;
};

struct JsonStyle {
  std::optional<std::string> indent = std::nullopt;  ///< of one level; none: everything on one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false;  ///< escape characters that are not ASCII
  bool sorted = false;
};

std::string to_json(Run& run, const Value& value, const JsonStyle& style);

/// repr() of a float: the shortest digits that read back to the same number.
std::string real_text(double number);

}  // namespace imago::jinja
