#pragma once

// Bytes as letters: byte-level vocabularies spell each byte as one visible character. Bytes that are visible in Latin-1
// stand for themselves, the others for U+0100 onwards, in order.

#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "lm/unicode_text.h"

namespace imago::lm {

constexpr std::array<char32_t, 256> make_byte_letters() noexcept {
  std::array<char32_t, 256> letters{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool visible = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xff && byte != 0xad);
    letters[byte] = visible ? byte : next++;
  }
  return letters;
}
inline constexpr std::array<char32_t, 256> kByteLetters = make_byte_letters();

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
