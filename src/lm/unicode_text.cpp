#include "lm/unicode_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace imago::lm {

namespace {

utf8proc_category_t category(char32_t code) noexcept { return utf8proc_category(static_cast<utf8proc_int32_t>(code)); }

bool within(char32_t code, char32_t low, char32_t high) noexcept { return code >= low && code <= high; }

unsigned combining_class(char32_t code) noexcept {
  return static_cast<unsigned>(utf8proc_get_property(static_cast<utf8proc_int32_t>(code))->combining_class);
}

void append_decomposed(std::u32string& out, char32_t code, bool compatible) {
  std::array<utf8proc_int32_t, 32> parts{};  // the longest decomposition of Unicode has 18
  const int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
  const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), parts.data(),
                                                         static_cast<utf8proc_ssize_t>(parts.size()),
                                                         static_cast<utf8proc_option_t>(options), nullptr);
  if (count < 1 || count > static_cast<utf8proc_ssize_t>(parts.size())) {
    out += code;
    return;
  }
  for (utf8proc_ssize_t i = 0; i < count; ++i) out += static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  std::size_t at = 0;
  for (std::size_t hit = text.find(from); hit != std::string_view::npos; hit = text.find(from, at)) {
    out.append(text, at, hit - at).append(to);
    at = hit + from.size();
  }
  return out.append(text, at);
}

bool is_space(char32_t code) noexcept {
  if (code < 0x80) return code == ' ' || within(code, '\t', '\r');
  if (code == 0x85) return true;
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

bool is_word(char32_t code) noexcept {
  const utf8proc_category_t kind = category(code);
  return (kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_NO) || kind == UTF8PROC_CATEGORY_PC;
}

bool is_digit(char32_t code) noexcept {
  return code < 0x80 ? within(code, '0', '9') : category(code) == UTF8PROC_CATEGORY_ND;
}

bool is_punctuation(char32_t code) noexcept {
  if (code < 0x80) {
    return within(code, '!', '/') || within(code, ':', '@') || within(code, '[', '`') || within(code, '{', '~');
  }
  const utf8proc_category_t kind = category(code);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

bool is_accent(char32_t code) noexcept { return code >= 0x80 && category(code) == UTF8PROC_CATEGORY_MN; }

bool is_control(char32_t code) noexcept {
  if (is_space(code)) return false;
  const utf8proc_category_t kind = category(code);
  return kind == UTF8PROC_CATEGORY_CC || kind == UTF8PROC_CATEGORY_CF || kind == UTF8PROC_CATEGORY_CN ||
         kind == UTF8PROC_CATEGORY_CO;
}

bool is_chinese(char32_t code) noexcept {
  return within(code, 0x4e00, 0x9fff) || within(code, 0x3400, 0x4dbf) || within(code, 0x20000, 0x2a6df) ||
         within(code, 0x2a700, 0x2b73f) || within(code, 0x2b740, 0x2b81f) ||
         within(code, 0x2b920, 0x2ceaf) ||  // BERT in Rust starts this block so, not at 0x2b820
         within(code, 0xf900, 0xfaff) || within(code, 0x2f800, 0x2fa1f);
}

void append_lower(std::u32string& out, char32_t code) {
  if (code == 0x130) {  // the one capital whose small form is two characters
    out += U"i\u0307";
  } else {
    out += static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
  }
}

std::u32string decomposed(std::u32string_view text, bool compatible) {
  std::u32string out;
  out.reserve(text.size());
  for (const char32_t code : text) append_decomposed(out, code, compatible);
  // utf8proc orders marks by swapping neighbours, which a million of them would make slow.
  for (std::size_t at = 0; at < out.size();) {
    if (out[at] < 0x300 || combining_class(out[at]) == 0) {
      ++at;
      continue;
    }
    std::size_t end = at + 1;
    while (end < out.size() && out[end] >= 0x300 && combining_class(out[end]) != 0) ++end;
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(at), out.begin() + static_cast<std::ptrdiff_t>(end),
                     [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    at = end;
  }
  return out;
}

std::string normal_form(std::string_view text, std::string_view form) {
  const auto ascii = [](char letter) { return static_cast<unsigned char>(letter) < 0x80; };
  if (std::ranges::all_of(text, ascii)) return std::string(text);
  const bool compatible = form == "NFKC" || form == "NFKD";
  const bool composes = form == "NFC" || form == "NFKC";
  std::string out;
  out.reserve(text.size());
  std::u32string codes;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_valid(text, at);
    codes.clear();
    for (std::size_t i = at; i < end;) {
      const Character character = character_at(text, i);
      codes += character.code;
      i += character.bytes;
    }
    std::u32string parts = decomposed(codes, compatible);
    if (composes) {
      static_assert(sizeof(utf8proc_int32_t) == sizeof(char32_t));
      const utf8proc_ssize_t count = utf8proc_normalize_utf32(
          reinterpret_cast<utf8proc_int32_t*>(parts.data()), static_cast<utf8proc_ssize_t>(parts.size()),
          static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      if (count >= 0) parts.resize(static_cast<std::size_t>(count));
    }
    for (const char32_t code : parts) append_utf8(out, code);
    at = end;
    if (at < text.size()) out += text[at++];
  }
  return out;
}

}  // namespace imago::lm
