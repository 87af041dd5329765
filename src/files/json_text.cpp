#include "files/json_text.h"

#include <cstdint>
#include <cstring>

namespace imago::files {

namespace {

constexpr std::uint64_t repeat(unsigned char byte) { return 0x0101010101010101ull * byte; }

/// True if one of eight bytes is a quote, a backslash, a control character or not ASCII. Borrows between bytes may only
/// raise a false alarm after a true one.
bool has_special(std::uint64_t eight) {
  constexpr std::uint64_t kHigh = repeat(0x80);
  const std::uint64_t quote = eight ^ repeat('"');
  const std::uint64_t backslash = eight ^ repeat('\\');
  return (((quote - repeat(1)) | (backslash - repeat(1)) | (eight - repeat(0x20)) | eight) & kHigh) != 0;
}

std::size_t skip_plain(std::string_view text, std::size_t at) {
  std::uint64_t eight = 0;
  while (text.size() - at >= sizeof eight) {
    std::memcpy(&eight, text.data() + at, sizeof eight);
    if (has_special(eight)) break;
    at += sizeof eight;
  }
  return at;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// The four digits of \uXXXX; -1 if they are not there.
int hex_unit(std::string_view text, std::size_t at) {
  if (at > text.size() || text.size() - at < 4) return -1;
  int unit = 0;
  for (std::size_t i = at; i < at + 4; ++i) {
    const int digit = hex_digit(text[i]);
    if (digit < 0) return -1;
    unit = unit * 16 + digit;
  }
  return unit;
}

bool is_high_surrogate(int unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low_surrogate(int unit) { return unit >= 0xDC00 && unit < 0xE000; }

/// Bytes of the escape at text[at], a backslash; 0 if it is none.
std::size_t escape_length(std::string_view text, std::size_t at) {
  if (at + 1 >= text.size()) return 0;
  const char kind = text[at + 1];
  if (kind != 'u') return std::string_view("\"\\/bfnrt").find(kind) == std::string_view::npos ? 0 : 2;
  const int unit = hex_unit(text, at + 2);
  if (unit < 0 || is_low_surrogate(unit)) return 0;
  if (!is_high_surrogate(unit)) return 6;
  const bool paired = text.substr(at + 6, 2) == "\\u" && is_low_surrogate(hex_unit(text, at + 8));
  return paired ? 12 : 0;
}

char single_escape(char kind) {
  switch (kind) {
    case 'b': return '\b';
    case 'f': return '\f';
    case 'n': return '\n';
    case 'r': return '\r';
    case 't': return '\t';
    default: return kind;
  }
}

}  // namespace

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

std::size_t utf8_length(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) -> unsigned { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(at);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() - at < length) return 0;
  // The second byte alone decides about overlong forms, surrogates and the end of Unicode.
  const unsigned second = byte(at + 1);
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (second < low || second > high) return 0;
  for (std::size_t i = at + 2; i < at + length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

JsonStringScan scan_json_string(std::string_view text, std::size_t start) {
  JsonStringScan scan;
  const auto problem = [&](std::size_t at, std::string_view what) {
    scan.problem = {at, what};
    return scan;
  };
  std::size_t at = start + 1;
  for (;;) {
    at = skip_plain(text, at);
    if (at >= text.size()) return problem(start, "a string that never ends: the file may be cut off");
    const unsigned char c = static_cast<unsigned char>(text[at]);
    if (c == '"') break;
    if (c == '\\') {
      scan.escaped = true;
      const std::size_t length = escape_length(text, at);
      if (length == 0) return problem(at, "a wrong escape in a string");
      at += length;
    } else if (c < 0x20) {
      return problem(at, "a control character in a string");
    } else {
      const std::size_t length = utf8_length(text, at);
      if (length == 0) return problem(at, "a string is not UTF-8");
      at += length;
    }
  }
  scan.end = at + 1;
  return scan;
}

std::string unescape_json(std::string_view inside) {
  std::string out;
  out.reserve(inside.size());
  for (std::size_t at = 0; at < inside.size();) {
    if (inside[at] != '\\') {
      out.push_back(inside[at++]);
    } else if (inside[at + 1] != 'u') {
      out.push_back(single_escape(inside[at + 1]));
      at += 2;
    } else {
      const int unit = hex_unit(inside, at + 2);
      const bool pair = is_high_surrogate(unit);
      const int low = pair ? hex_unit(inside, at + 8) : 0;
      append_utf8(out, static_cast<char32_t>(pair ? 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00) : unit));
      at += pair ? 12 : 6;
    }
  }
  return out;
}

}  // namespace imago::files
