#pragma once

// Characters of texts that may hold anything.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/json_text.h"

namespace imago::lm {

struct Character {
  char32_t code = 0;  ///< U+FFFD for a byte that is not UTF-8
  std::size_t bytes = 1;
  bool valid = true;
};

/// The character at text[at]. REQUIRES: at < text.size().
inline Character character_at(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  const auto tail = [&](std::size_t i) { return byte(i) & 0x3f; };
  switch (files::utf8_length(text, at)) {
    case 2: return {(lead & 0x1f) << 6 | tail(1), 2, true};
    case 3: return {(lead & 0x0f) << 12 | tail(1) << 6 | tail(2), 3, true};
    case 4: return {(lead & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4, true};
    default: return {0xfffd, 1, false};
  }
}

using files::append_utf8;

/// Bytes up to the first that is not UTF-8 from `from` on.
inline std::size_t end_of_valid(std::string_view text, std::size_t from) noexcept {
  while (from < text.size()) {
    const std::size_t bytes = static_cast<unsigned char>(text[from]) < 0x80 ? 1 : files::utf8_length(text, from);
    if (bytes == 0) break;
    from += bytes;
  }
  return from;
}

/// `text` with `to` for every `from`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to);

bool is_space(char32_t code) noexcept;
/// Letters, marks, numbers and connectors such as '_'.
bool is_word(char32_t code) noexcept;
bool is_digit(char32_t code) noexcept;  ///< of any script: category Nd
bool is_punctuation(char32_t code) noexcept;
bool is_accent(char32_t code) noexcept;   ///< category Mn
bool is_control(char32_t code) noexcept;  ///< categories Cc, Cf, Cn and Co; no white space
bool is_chinese(char32_t code) noexcept;  ///< ideographs, as BERT counts them

/// The lower-case form, one or more characters.
void append_lower(std::u32string& out, char32_t code);

/// `text` in a normal form: "NFC", "NFD", "NFKC" or "NFKD". Bytes that are not UTF-8 stay as they are. Time is linear
/// but for a logarithm, however many marks follow each other.
std::string normal_form(std::string_view text, std::string_view form);
/// Canonical decomposition in place of each character, marks in order.
std::u32string decomposed(std::u32string_view text, bool compatible);

}  // namespace imago::lm
