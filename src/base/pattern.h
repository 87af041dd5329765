#pragma once

// Regular expressions that users write over names of tensors.

#include <fmt/format.h>

#include <regex>
#include <string>

#include "imago/error.h"

namespace imago {

/// Throws UsageError for text that is not a regular expression.
inline std::regex compile_pattern(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript | std::regex::optimize);
  } catch (const std::regex_error& error) {
    throw UsageError(fmt::format("'{}' is not a regular expression: {}", text, error.what()));
  }
}

}  // namespace imago
