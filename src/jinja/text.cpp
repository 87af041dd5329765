#include "jinja/text.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "jinja/string_literal.h"

namespace imago::jinja {

namespace {

/// The code point at `at` and its bytes; what is no UTF-8 gives -1 and one byte.
std::pair<std::int32_t, std::size_t> decode(std::string_view text, std::size_t at) noexcept {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, 1};
  utf8proc_int32_t code = -1;
  const auto left = static_cast<utf8proc_ssize_t>(std::min<std::size_t>(text.size() - at, 4));
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at), left, &code);
  return bytes > 0 ? std::pair(code, static_cast<std::size_t>(bytes)) : std::pair(-1, std::size_t{1});
}

template <class Change>
std::string changed(std::string_view text, Change change) {
  std::string made;
  made.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const auto [code, bytes] = decode(text, at);
    if (code < 0) {
      made += text[at];
    } else {
      append_utf8(made, static_cast<std::uint32_t>(change(code)));
    }
    at += bytes;
  }
  return made;
}

bool is_blank(std::int32_t code) noexcept {
  if (code < 0x80) return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  const utf8proc_category_t category = utf8proc_category(code);
  return code == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

bool is_letter(std::int32_t code) noexcept {
  const utf8proc_category_t category = utf8proc_category(code);
  return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL || category == UTF8PROC_CATEGORY_LT;
}

template <class Goes>
std::string_view stripped(std::string_view text, Side side, Goes goes) {
  while (side != Side::right && !text.empty()) {
    const auto [code, bytes] = decode(text, 0);
    if (!goes(code, text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (side != Side::left && !text.empty()) {
    std::size_t start = text.size() - 1;
    while (start > 0 && text.size() - start < 4 && (static_cast<unsigned char>(text[start]) & 0xc0) == 0x80) --start;
    if (start + decode(text, start).second != text.size()) start = text.size() - 1;
    if (!goes(decode(text, start).first, text.substr(start))) break;
    text.remove_suffix(text.size() - start);
  }
  return text;
}

}  // namespace

Characters::Characters(std::string_view text) : text_(text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return;
  for (std::size_t at = 0; at < text.size(); at += decode(text, at).second) starts_.push_back(at);
  starts_.push_back(text.size());
}

std::size_t character_count(std::string_view text) noexcept {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += decode(text, at).second) ++count;
  return count;
}

bool is_blank(std::string_view character) noexcept { return is_blank(decode(character, 0).first); }

std::string upper(std::string_view text) { return changed(text, utf8proc_toupper); }
std::string lower(std::string_view text) { return changed(text, utf8proc_tolower); }

std::string capitalize(std::string_view text) {
  return changed(text, [first = true](std::int32_t code) mutable {
    return std::exchange(first, false) ? utf8proc_totitle(code) : utf8proc_tolower(code);
  });
}

std::string title(std::string_view text) {
  return changed(text, [inside = false](std::int32_t code) mutable {
    const std::int32_t made = inside ? utf8proc_tolower(code) : utf8proc_totitle(code);
    inside = is_letter(code);
    return made;
  });
}

std::string_view strip(std::string_view text, Side side, std::string_view set) {
  const Characters members(set);
  return stripped(text, side, [&](std::int32_t, std::string_view character) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (members.range(i, i + 1) == character) return true;
    }
    return false;
  });
}

std::string_view strip(std::string_view text, Side side) {
  return stripped(text, side, [](std::int32_t code, std::string_view) { return is_blank(code); });
}

}  // namespace imago::jinja
