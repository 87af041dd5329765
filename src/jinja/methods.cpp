// The methods of Python's strings, lists and dictionaries that have no side effects.

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

using Method = Value (*)(Run&, const Value&, Arguments&);
struct Row {
  std::string_view name;
  Method method;
};

const std::string& argument(Run& run, const Arguments& arguments, std::size_t place, std::string_view what) {
  if (place >= arguments.positional.size()) run.fail(fmt::format("{} is missing", what));
  return expect_string(run, arguments.positional[place], what);
}

template <Side side>
Value strip_method(Run& run, const Value& self, Arguments& arguments) {
  run.touch(self.string()->size());
  const Value* set = arguments.find(0, "chars");
  const std::string_view kept = set && !set->is_none()
                                    ? strip(*self.string(), side, expect_string(run, *set, "the characters to strip"))
                                    : strip(*self.string(), side);
  return run.text(std::string(kept));
}

template <std::string (*change)(std::string_view)>
Value change_method(Run& run, const Value& self, Arguments&) {
  run.touch(self.string()->size() * 8);
  return run.text(change(*self.string()));
}

template <bool from_right>
Value split_method(Run& run, const Value& self, Arguments& arguments) {
  const Value* separator = arguments.find(0, "sep");
  const Value* limit = arguments.find(1, "maxsplit");
  const std::int64_t most = limit ? expect_integer(run, *limit, "maxsplit") : -1;
  std::optional<std::string> cut;
  if (separator && !separator->is_none()) cut = expect_string(run, *separator, "the separator of split()");
  return split(run, *self.string(), cut, most, from_right);
}

Value splitlines(Run& run, const Value& self, Arguments&) {
  const std::string& text = *self.string();
  std::vector<Value> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of("\r\n", at), text.size());
    lines.push_back(run.text(text.substr(at, end - at)));
    at = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  run.spend(lines.size());
  return run.list(std::move(lines));
}

template <bool at_start>
Value affix_method(Run& run, const Value& self, Arguments& arguments) {
  const std::string& text = *self.string();
  if (arguments.positional.empty()) run.fail("startswith() and endswith() need a text");
  const Value& given = arguments.positional[0];
  const auto fits = [&](const Value& value) {
    const std::string& affix = expect_string(run, value, "the argument of startswith() or endswith()");
    return at_start ? text.starts_with(affix) : text.ends_with(affix);
  };
  if (const List* list = given.list(); list && list->tuple) {
    run.spend(list->items.size());
    return Value(std::any_of(list->items.begin(), list->items.end(), fits));
  }
  return Value(fits(given));
}

Value replace_method(Run& run, const Value& self, Arguments& arguments) {
  const std::string& from = argument(run, arguments, 0, "the text that replace() looks for");
  const std::string& to = argument(run, arguments, 1, "the replacement of replace()");
  const Value* limit = arguments.find(2, "count");
  return run.text(replaced(run, *self.string(), from, to, limit ? expect_integer(run, *limit, "count") : -1));
}

template <bool last>
Value find_method(Run& run, const Value& self, Arguments& arguments) {
  const std::string& text = *self.string();
  const std::string& sought = argument(run, arguments, 0, "the text that find() looks for");
  if (arguments.positional.size() > 1) run.refuse("find() with a start position is not supported");
  run.touch(text.size());
  const std::size_t at = last ? text.rfind(sought) : text.find(sought);
  if (at == std::string::npos) return Value(std::int64_t{-1});
  return Value(static_cast<std::int64_t>(character_count(std::string_view(text).substr(0, at))));
}

Value count_method(Run& run, const Value& self, Arguments& arguments) {
  const std::string& text = *self.string();
  const std::string& sought = argument(run, arguments, 0, "the text that count() looks for");
  run.touch(text.size());
  if (sought.empty()) return Value(static_cast<std::int64_t>(character_count(text)) + 1);
  std::int64_t count = 0;
  for (std::size_t at = text.find(sought); at != std::string::npos; at = text.find(sought, at + sought.size())) ++count;
  return Value(count);
}

Value join_method(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) run.fail("join() needs a list");
  const ListRef items = items_of(run, arguments.positional[0]);
  for (const Value& value : items->items) expect_string(run, value, "an item of join()");
  return run.text(joined(run, items->items, *self.string()));
}

template <bool (*holds)(char)>
Value all_method(Run& run, const Value& self, Arguments&) {
  const std::string& text = *self.string();
  run.touch(text.size());
  return Value(!text.empty() && std::all_of(text.begin(), text.end(), holds));
}
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_space(char c) noexcept { return is_blank(std::string_view(&c, 1)); }

Value format_method(Run& run, const Value& self, Arguments& arguments) {
  return run.text(formatted(run, *self.string(), arguments));
}

constexpr Row kStringMethods[] = {
    {"strip", strip_method<Side::both>},
    {"lstrip", strip_method<Side::left>},
    {"rstrip", strip_method<Side::right>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines},
    {"startswith", affix_method<true>},
    {"endswith", affix_method<false>},
    {"upper", change_method<upper>},
    {"lower", change_method<lower>},
    {"title", change_method<title>},
    {"capitalize", change_method<capitalize>},
    {"replace", replace_method},
    {"find", find_method<false>},
    {"rfind", find_method<true>},
    {"count", count_method},
    {"join", join_method},
    {"isdigit", all_method<is_digit>},
    {"isspace", all_method<is_space>},
    {"format", format_method},
};

Value get_method(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) run.fail("get() needs a key");
  run.touch(self.dict()->items.size() * 8);
  if (const Value* held = self.dict()->find(arguments.positional[0])) return *held;
  return arguments.positional.size() > 1 ? arguments.positional[1] : Value();
}

Value items_method(Run& run, const Value& self, Arguments&) { return dict_items(run, *self.dict()); }

template <bool keys>
Value half_method(Run& run, const Value& self, Arguments&) {
  std::vector<Value> half;
  run.spend(self.dict()->items.size());
  for (const auto& [key, value] : self.dict()->items) half.push_back(keys ? key : value);
  return run.list(std::move(half));
}

Value copy_method(Run&, const Value& self, Arguments&) { return self; }

constexpr Row kDictMethods[] = {
    {"get", get_method},   {"items", items_method}, {"keys", half_method<true>}, {"values", half_method<false>},
    {"copy", copy_method},
};

Value index_method(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) run.fail("index() and count() need a value");
  const std::vector<Value>& items = self.list()->items;
  const auto found = std::find_if(items.begin(), items.end(),
                                  [&](const Value& item) { return equal(run, item, arguments.positional[0]); });
  if (found == items.end()) run.fail("index() of a value that is not in the list");
  return Value(static_cast<std::int64_t>(found - items.begin()));
}

Value list_count_method(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) run.fail("index() and count() need a value");
  const std::vector<Value>& items = self.list()->items;
  return Value(static_cast<std::int64_t>(std::count_if(
      items.begin(), items.end(), [&](const Value& item) { return equal(run, item, arguments.positional[0]); })));
}

/// Rejects methods that would change a value, as the sandbox of transformers does.
Value refuse_change(Run& run, const Value&, Arguments&) {
  run.refuse("append(), pop() and other changes of lists and dictionaries are not allowed; use namespace() and '+'");
}

constexpr Row kListMethods[] = {
    {"index", index_method},
    {"count", list_count_method},
};
constexpr std::string_view kListChanges[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};
constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};

Value cycle_method(Run& run, const Value& self, Arguments& arguments) {
  if (arguments.positional.empty()) run.fail("loop.cycle() needs values");
  return arguments.positional[(*self.get<const Loop*>())->index % arguments.positional.size()];
}
constexpr Row kLoopMethods[] = {{"cycle", cycle_method}};

Method find_method_of(const Value& value, std::string_view name) noexcept {
  const auto among = [&](auto& rows) -> Method {
    const auto row = std::find_if(std::begin(rows), std::end(rows), [&](const Row& r) { return r.name == name; });
    return row == std::end(rows) ? nullptr : row->method;
  };
  if (value.is_string()) return among(kStringMethods);
  if (value.get<const Loop*>()) return among(kLoopMethods);
  if (!value.is_dict() && !value.is_list()) return nullptr;
  if (const Method method = value.is_dict() ? among(kDictMethods) : among(kListMethods)) return method;
  const auto changes = [&](auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (value.is_dict() ? changes(kDictChanges) : changes(kListChanges)) ? refuse_change : nullptr;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) noexcept { return find_method_of(value, name) != nullptr; }

Value call_method(Run& run, const Value& value, std::string_view name, Arguments& arguments) {
  return find_method_of(value, name)(run, value, arguments);
}

}  // namespace imago::jinja
