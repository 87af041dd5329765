#pragma once

// Bytes as letters: byte-level vocabularies spell each byte as one visible character. Bytes that are visible in Latin-1
// stand for themselves, the others for U+0100 onwards, in order.

#include <array>
#include <cstddef>

namespace imago::models {

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

}  // namespace imago::models
