#pragma once

// The inside of JSON strings.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace imago::files {

/// The first problem of a string, and its offset in the text.
struct JsonStringProblem {
  std::size_t at;
  std::string_view problem;
};

struct JsonStringScan {
  std::size_t end = 0;  ///< of the string: after the closing quote
  bool escaped = false;
  std::optional<JsonStringProblem> problem;
};

/// Checks the string whose opening quote stands at text[start]: UTF-8, escapes, no bare control characters. Text
/// without escapes, such as base64, is read eight bytes at a time.
JsonStringScan scan_json_string(std::string_view text, std::size_t start);

/// Resolves the escapes of the text between the quotes. REQUIRES: scan_json_string found no problem in it.
std::string unescape_json(std::string_view inside);

/// REQUIRES: code is not a surrogate and at most U+10FFFF.
void append_utf8(std::string& text, char32_t code);

/// Length of the UTF-8 sequence at text[at], 0 if there is no valid one. One to four bytes; no surrogates, no overlong
/// sequences, nothing beyond U+10FFFF.
std::size_t utf8_length(std::string_view text, std::size_t at) noexcept;

}  // namespace imago::files
