#include "jinja/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace imago::jinja {

namespace {

/// The code point at `at` and its length; -1 and one byte for invalid UTF-8.
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

bool is_blank_code(std::int32_t code) noexcept {
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

void append_utf8(std::string& text, std::uint32_t code) {
  if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) code = 0xfffd;
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(count));
}

std::int32_t code_of(std::string_view character) noexcept { return decode(character, 0).first; }

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

bool is_blank(std::string_view character) noexcept { return is_blank_code(code_of(character)); }

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
  return stripped(text, side, [](std::int32_t code, std::string_view) { return is_blank_code(code); });
}

std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  run.touch(text.size());
  TextBuilder out(run);
  if (from.empty()) {  // inserted between all characters and at both ends
    const Characters characters(text);
    for (std::size_t i = 0; i <= characters.size(); ++i) {
      if (limit < 0 || static_cast<std::int64_t>(i) < limit) out << to;
      if (i < characters.size()) out << characters.range(i, i + 1);
    }
    return out.take();
  }
  std::size_t at = 0;
  for (std::int64_t count = 0; limit < 0 || count < limit; ++count) {
    const std::size_t found = text.find(from, at);
    if (found == std::string_view::npos) break;
    out << text.substr(at, found - at) << to;
    at = found + from.size();
  }
  out << text.substr(at);
  return out.take();
}

namespace {

void split_by_blanks(Run& run, std::string_view text, std::int64_t limit, bool from_right, std::vector<Value>& parts) {
  const Characters characters(text);
  const std::size_t size = characters.size();
  // i counts from the left or from the right.
  const auto blank = [&](std::size_t i) {
    const std::size_t at = from_right ? size - 1 - i : i;
    return is_blank(characters.range(at, at + 1));
  };
  const auto part = [&](std::size_t from, std::size_t to) {
    return from_right ? characters.range(size - to, size - from) : characters.range(from, to);
  };
  for (std::size_t i = 0; i < size;) {
    while (i < size && blank(i)) ++i;
    if (i == size) break;
    if (limit >= 0 && static_cast<std::int64_t>(parts.size()) == limit) {
      parts.push_back(run.text(std::string(strip(part(i, size), from_right ? Side::left : Side::right))));
      break;
    }
    std::size_t end = i;
    while (end < size && !blank(end)) ++end;
    parts.push_back(run.text(std::string(part(i, end))));
    i = end;
  }
}

}  // namespace

Value split(Run& run, std::string_view text, const std::optional<std::string>& separator, std::int64_t limit,
            bool from_right) {
  run.touch(text.size());
  std::vector<Value> parts;
  if (!separator) {
    split_by_blanks(run, text, limit, from_right, parts);
    if (from_right) std::reverse(parts.begin(), parts.end());
    return run.list(std::move(parts));
  }
  if (separator->empty()) run.fail("the separator of split() is empty");
  while (limit < 0 || static_cast<std::int64_t>(parts.size()) < limit) {
    const std::size_t found = from_right ? text.rfind(*separator) : text.find(*separator);
    if (found == std::string_view::npos) break;
    const std::size_t after = found + separator->size();
    parts.push_back(run.text(std::string(from_right ? text.substr(after) : text.substr(0, found))));
    text = from_right ? text.substr(0, found) : text.substr(after);
  }
  parts.push_back(run.text(std::string(text)));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return run.list(std::move(parts));
}

std::string joined(Run& run, const std::vector<Value>& items, std::string_view separator) {
  TextBuilder out(run);
  bool first = true;
  for (const Value& item : items) {
    if (!std::exchange(first, false)) out << separator;
    out << to_text(run, item);
  }
  return out.take();
}

std::string formatted(Run& run, std::string_view format, const Arguments& arguments) {
  TextBuilder out(run);
  std::size_t next = 0;
  for (std::size_t at = 0; at < format.size(); ++at) {
    const char c = format[at];
    const bool doubled = at + 1 < format.size() && format[at + 1] == c;
    if ((c == '{' || c == '}') && doubled) {
      out << format.substr(at++, 1);
    } else if (c == '}') {
      run.fail("format(): a '}' without its '{'");
    } else if (c != '{') {
      out << format.substr(at, 1);
    } else {
      const std::size_t end = format.find('}', at);
      if (end == std::string_view::npos) run.fail("format(): a '{' without its '}'");
      const std::string_view field = format.substr(at + 1, end - at - 1);
      if (field.find_first_of("{:!.[") != std::string_view::npos) {
        run.refuse(fmt::format("format() supports {{}}, {{0}} and {{name}}, not '{{{}}}'", field.substr(0, 100)));
      }
      std::size_t place = arguments.positional.size();
      const bool numbered = !field.empty() && field[0] >= '0' && field[0] <= '9';
      if (numbered) std::from_chars(field.data(), field.data() + field.size(), place);
      if (field.empty()) place = next++;
      const Value* value = arguments.find(place, field);
      if (value == nullptr) run.fail(fmt::format("format(): no value for '{{{}}}'", field.substr(0, 100)));
      out << to_text(run, *value);
      at = end;
    }
  }
  return out.take();
}

Value dict_items(Run& run, const Dict& dict) {
  std::vector<Value> pairs;
  run.spend(dict.items.size());
  for (const auto& [key, value] : dict.items) pairs.push_back(run.list({key, value}, true));
  return run.list(std::move(pairs));
}

}  // namespace imago::jinja
