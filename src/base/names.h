#pragma once

// Names of the members of an enum, and names that were misspelled.

#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/error.h"

namespace imago {

/// The first name of `value` in a table of {value, name}; `otherwise` for a value that is not in it.
template <class Enum, std::size_t n>
std::string_view name_in(const std::pair<Enum, std::string_view> (&table)[n], Enum value,
                         std::string_view otherwise = "?") noexcept {
  for (const auto& [member, text] : table) {
    if (member == value) return text;
  }
  return otherwise;
}

/// True if the texts are equal but for the case of ASCII letters.
bool same_but_for_case(std::string_view a, std::string_view b) noexcept;

/// The value of a name. Throws UsageError that lists the names of the table.
template <class Enum, std::size_t n, class Same = std::equal_to<>>
Enum parse_in(const std::pair<Enum, std::string_view> (&table)[n], std::string_view text, std::string_view what,
              Same same = {}) {
  std::string known;
  for (const auto& [member, name] : table) {
    if (same(name, text)) return member;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  throw UsageError(fmt::format("unknown {} '{}'; known are {}", what, text, known));
}

/// The `count` candidates that `text` most likely meant, nearest first, by the letters that would have to change.
std::vector<std::string> near_names(std::string_view text, std::span<const std::string> candidates, std::size_t count);

}  // namespace imago
