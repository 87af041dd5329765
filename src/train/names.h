#pragma once

// Names of the members of an enum: a table of {value, name}, the first name of a value being its own.

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "imago/error.h"

namespace imago {

template <class Enum, std::size_t N>
std::string_view name_in(const std::pair<Enum, std::string_view> (&table)[N], Enum value) noexcept {
  for (const auto& [member, text] : table) {
    if (member == value) return text;
  }
  return "?";
}

/// Throws UsageError that lists the names of the table.
template <class Enum, std::size_t N>
Enum parse_in(const std::pair<Enum, std::string_view> (&table)[N], std::string_view text, std::string_view what) {
  std::string known;
  for (const auto& [member, name] : table) {
    if (name == text) return member;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", name);
  }
  throw UsageError(fmt::format("'{}' is no {}; known are {}", text, what, known));
}

}  // namespace imago
