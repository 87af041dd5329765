#pragma once

// Texts that no author would write.

#include <random>
#include <string>
#include <string_view>

namespace imago::testing {

/// Up to `characters` characters from all over Unicode, often such that tokenizers treat alike only if they are right:
/// spaces, line ends, digits, marks, capitals. Valid UTF-8 without U+2581, which SentencePiece takes for a space.
inline std::string random_text(std::mt19937& random, int characters) {
  const auto number = [&](char32_t low, char32_t high) {
    return static_cast<char32_t>(std::uniform_int_distribution<std::uint32_t>(low, high)(random));
  };
  const auto append = [](std::string& text, char32_t code) {
    const auto put = [&](char32_t byte) { text += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | code >> 6), put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | code >> 12), put(0x80 | (code >> 6 & 0x3f)), put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | code >> 18), put(0x80 | (code >> 12 & 0x3f)), put(0x80 | (code >> 6 & 0x3f)),
          put(0x80 | (code & 0x3f));
    }
  };
  constexpr std::string_view kOften = "  \n\r\t.,'!?-_<>|0123456789etaoinETAOIN'sll";
  std::string text;
  for (int left = static_cast<int>(number(0, static_cast<char32_t>(characters))); left > 0; --left) {
    char32_t code = 0;
    switch (number(0, 7)) {
      case 0: code = number(0x80, 0x24f); break;     // Latin
      case 1: code = number(0x300, 0x36f); break;    // marks
      case 2: code = number(0x370, 0x2fff); break;   // alphabets, punctuation
      case 3: code = number(0x3000, 0xd7ff); break;  // East Asia
      case 4:
        code = number(0xe000, 0x3ffff);
        break;  // emoji and the rest; Falcon has no token for bytes of planes 8 to 11
      default: code = static_cast<unsigned char>(kOften[number(0, static_cast<char32_t>(kOften.size() - 1))]); break;
    }
    if (code != 0x2581) append(text, code);
  }
  return text;
}

}  // namespace imago::testing
