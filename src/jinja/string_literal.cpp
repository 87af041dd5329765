#include "jinja/string_literal.h"

#include <charconv>

namespace imago::jinja {

namespace {

/// Bytes of a number of `digits` in `base` at `at`; 0 if it is none.
std::size_t read_code(std::string_view text, std::size_t at, std::size_t digits, int base, std::uint32_t& code) {
  const char* const first = text.data() + at;
  const char* const last = first + std::min(digits, text.size() - at);
  const auto [end, error] = std::from_chars(first, last, code, base);
  return error == std::errc() ? static_cast<std::size_t>(end - first) : 0;
}

/// The byte that a backslash and `c` stand for; 0 for others.
char simple_escape(char c) noexcept {
  switch (c) {
    case 'n': return '\n';
    case 't': return '\t';
    case 'r': return '\r';
    case 'a': return '\a';
    case 'b': return '\b';
    case 'f': return '\f';
    case 'v': return '\v';
    case '\\':
    case '\'':
    case '"': return c;
    default: return '\0';
  }
}

}  // namespace

void append_utf8(std::string& text, std::uint32_t code) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  const auto add = [&](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

std::string resolve_escapes(const Source& source, std::size_t from, std::size_t to) {
  const std::string_view text = std::string_view(source.text).substr(0, to);
  std::string meaning;
  for (std::size_t at = from; at < to;) {
    if (text[at] != '\\' || at + 1 == to) {
      meaning += text[at++];
      continue;
    }
    const char c = text[at + 1];
    std::uint32_t code = 0;
    if (const char byte = simple_escape(c)) {
      meaning += byte;
      at += 2;
    } else if (c == '\n') {  // a line that goes on
      at += 2;
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      if (read_code(text, at + 2, digits, 16, code) != digits) {
        source.fail(at, "an escape with too few hexadecimal digits: \\xHH, \\uHHHH or \\UHHHHHHHH");
      }
      append_utf8(meaning, code);
      at += 2 + digits;
    } else if (c >= '0' && c <= '7') {
      at += 1 + read_code(text, at + 1, 3, 8, code);
      append_utf8(meaning, code);
    } else {  // as Python keeps what it does not know
      meaning += '\\';
      ++at;
    }
  }
  return meaning;
}

}  // namespace imago::jinja
