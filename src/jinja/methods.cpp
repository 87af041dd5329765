// The methods of Python's strings, lists and dictionaries that have no side effects.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>

#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

using Row = NamedFunction<Value>;

/// The first argument; fails with `problem` if there is none.
const Value& first(Run& run, const Arguments& arguments, std::string_view problem) {
  if (arguments.positional.empty()) run.fail(problem);
  return arguments.positional[0];
}

const std::string& argument(Run& run, const Arguments& arguments, std::size_t place, std::string_view what) {
  if (place >= arguments.positional.size()) run.fail(fmt::format("{} is missing", what));
  return expect_string(run, arguments.positional[place], what);
}

template <bool from_right>
Value split_method(Run& run, const Value& self, Arguments& arguments) {
  const Value* separator = arguments.find_set(0, "sep");
  const Value* limit = arguments.find(1, "maxsplit");
  const std::int64_t most = limit ? expect_integer(run, *limit, "maxsplit") : -1;
  std::optional<std::string> cut;
  if (separator) cut = expect_string(run, *separator, "the separator of split()");
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
  const Value& given = first(run, arguments, "startswith() and endswith() need a text");
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
Value find_text(Run& run, const Value& self, Arguments& arguments) {
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
  const ListRef items = items_of(run, first(run, arguments, "join() needs a list"));
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
    {"strip", strip_text<Side::both>},
    {"lstrip", strip_text<Side::left>},
    {"rstrip", strip_text<Side::right>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", splitlines},
    {"startswith", affix_method<true>},
    {"endswith", affix_method<false>},
    {"upper", change_text<upper>},
    {"lower", change_text<lower>},
    {"title", change_text<title>},
    {"capitalize", change_text<capitalize>},
    {"replace", replace_method},
    {"find", find_text<false>},
    {"rfind", find_text<true>},
    {"count", count_method},
    {"join", join_method},
    {"isdigit", all_method<is_digit>},
    {"isspace", all_method<is_space>},
    {"format", format_method},
};

Value get_method(Run& run, const Value& self, Arguments& arguments) {
  const Value& key = first(run, arguments, "get() needs a key");
  run.touch(self.dict()->items.size() * 8);
  if (const Value* held = self.dict()->find(key)) return *held;
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

/// Rejects methods that would change a value, as the sandbox of transformers does.
Value refuse_change(Run& run, const Value&, Arguments&) {
  run.refuse("append(), pop() and other changes of lists and dictionaries are not allowed; use namespace() and '+'");
}

constexpr Row kDictMethods[] = {
    {"get", get_method},           {"items", items_method},
    {"keys", half_method<true>},   {"values", half_method<false>},
    {"copy", copy_method},         {"clear", refuse_change},
    {"pop", refuse_change},        {"popitem", refuse_change},
    {"setdefault", refuse_change}, {"update", refuse_change},
};

Value index_method(Run& run, const Value& self, Arguments& arguments) {
  const Value& sought = first(run, arguments, "index() and count() need a value");
  const std::vector<Value>& items = self.list()->items;
  const auto found = std::ranges::find_if(items, [&](const Value& item) { return equal(run, item, sought); });
  if (found == items.end()) run.fail("index() of a value that is not in the list");
  return Value(static_cast<std::int64_t>(found - items.begin()));
}

Value list_count_method(Run& run, const Value& self, Arguments& arguments) {
  const Value& sought = first(run, arguments, "index() and count() need a value");
  const auto equals = [&](const Value& item) { return equal(run, item, sought); };
  return Value(static_cast<std::int64_t>(std::ranges::count_if(self.list()->items, equals)));
}

constexpr Row kListMethods[] = {
    {"index", index_method},    {"count", list_count_method}, {"append", refuse_change}, {"clear", refuse_change},
    {"extend", refuse_change},  {"insert", refuse_change},    {"pop", refuse_change},    {"remove", refuse_change},
    {"reverse", refuse_change}, {"sort", refuse_change},
};

Value cycle_method(Run& run, const Value& self, Arguments& arguments) {
  first(run, arguments, "loop.cycle() needs values");
  return arguments.positional[(*self.get<const Loop*>())->index % arguments.positional.size()];
}
constexpr Row kLoopMethods[] = {{"cycle", cycle_method}};

/// Null if values of its type have no such method.
const Row* find_method(const Value& value, std::string_view name) noexcept {
  const auto among = [&](std::span<const Row> rows) {
    const auto row = std::ranges::find(rows, name, &Row::name);
    return row == rows.end() ? nullptr : &*row;
  };
  if (value.is_string()) return among(kStringMethods);
  if (value.is_dict()) return among(kDictMethods);
  if (value.is_list()) return among(kListMethods);
  return value.get<const Loop*>() ? among(kLoopMethods) : nullptr;
}

}  // namespace

bool has_method(const Value& value, std::string_view name) noexcept { return find_method(value, name) != nullptr; }

Value call_method(Run& run, const Value& value, std::string_view name, Arguments& arguments) {
  return find_method(value, name)->function(run, value, arguments);
}

}  // namespace imago::jinja
