#include "jinja/text_operations.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "jinja/text.h"
#include "jinja/writer.h"

namespace imago::jinja {

std::string replaced(Run& run, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  run.touch(text.size());
  TextBuilder out(run);
  if (from.empty()) {  // between all characters, and at both ends
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
  // Walks from either end: character i of the walk.
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
        run.refuse(fmt::format("format() knows {{}}, {{0}} and {{name}} only, not '{{{}}}'", field.substr(0, 100)));
      }
      std::size_t place = arguments.positional.size();
      const bool numbered = !field.empty() && field[0] >= '0' && field[0] <= '9';
      if (numbered) std::from_chars(field.data(), field.data() + field.size(), place);
      if (field.empty()) place = next++;
      const Value* value = arguments.find(place, field);
      if (value == nullptr) run.fail(fmt::format("format(): nothing was given for '{{{}}}'", field.substr(0, 100)));
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
