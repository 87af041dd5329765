#pragma once

// What methods and filters of text and dictionaries share.

#include <optional>
#include <string>
#include <string_view>

#include "jinja/run.h"

namespace imago::jinja {

/// At most `limit` times; all if negative.
std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit);

/// By white space where no separator is given. `limit` cuts at most, from the left or the right; all if negative.
Value split(Run& run, std::string_view text, const std::optional<std::string>& separator, std::int64_t limit,
            bool from_right);

/// str() of each, with the separator between them.
std::string joined(Run& run, const std::vector<Value>& items, std::string_view separator);

/// '{} {0} {name}'; format specifications are refused.
std::string formatted(Run& run, std::string_view format, const Arguments& arguments);

/// Tuples of key and value.
Value dict_items(Run& run, const Dict& dict);

}  // namespace imago::jinja
