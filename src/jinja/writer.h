#pragma once

// Values as text: as Python prints them, and as JSON.

#include <optional>
#include <string>
#include <string_view>

#include "jinja/run.h"

namespace imago::jinja {

/// Text that grows within the bound of a string.
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
  std::optional<std::string> indent = std::nullopt;  ///< of one level; none: all in one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false;  ///< \u escapes for all beyond ASCII
  bool sorted = false;
};

std::string to_json(Run& run, const Value& value, const JsonStyle& style);

/// Shortest digits that give the number back, spelled as Python does.
std::string real_text(double number);

}  // namespace imago::jinja
