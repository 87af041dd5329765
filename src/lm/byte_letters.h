#pragma once

// The bytes that letters of byte-level vocabularies stand for.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "lm/unicode_text.h"
#include "models/byte_letters.h"

namespace imago::lm {

using models::kByteLetters;

/// The byte of each letter below U+0144; -1 for what is none.
constexpr std::array<int, 0x144> make_letter_bytes() noexcept {
  std::array<int, 0x144> bytes{};
  for (int& byte : bytes) byte = -1;
  for (std::size_t byte = 0; byte < 256; ++byte) bytes[kByteLetters[byte]] = static_cast<int>(byte);
  return bytes;
}
inline constexpr std::array<int, 0x144> kLetterBytes = make_letter_bytes();

/// The bytes that `letters` spell; none if one of them stands for no byte.
inline std::optional<std::string> bytes_of_letters(std::string_view letters) {
  std::string bytes;
  for (std::size_t at = 0; at < letters.size();) {
    const Character letter = character_at(letters, at);
    if (!letter.valid || letter.code >= kLetterBytes.size() || kLetterBytes[letter.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kLetterBytes[letter.code]);
    at += letter.bytes;
  }
  return bytes;
}

}  // namespace imago::lm
