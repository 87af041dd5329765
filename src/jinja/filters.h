#pragma once

// The filters, in two tables.

#include <span>
#include <string_view>

#include "jinja/run.h"

namespace imago::jinja {

using Filter = Value (*)(Run&, const Value& input, Arguments&);
struct FilterRow {
  std::string_view name;
  Filter filter;
};

/// Of text, numbers and single values; of lists and dictionaries.
std::span<const FilterRow> value_filters() noexcept;
std::span<const FilterRow> sequence_filters() noexcept;

/// str(value), not copied where it is a string.
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

}  // namespace imago::jinja
