// Filters of lists and dictionaries.

#include <fmt/format.h>

#include <algorithm>

#include "jinja/filters.h"
#include "jinja/operators.h"
#include "jinja/text.h"
#include "jinja/text_operations.h"

namespace imago::jinja {

namespace {

bool flag(const Arguments& arguments, std::size_t place, std::string_view name) {
  const Value* given = arguments.find(place, name);
  return given && truth(*given);
}

/// "a.b.0" of a value.
Value deep_attribute(Run& run, Value value, const Value& path) {
  if (path.get<std::int64_t>()) return item(run, value, path);
  std::string_view left = expect_string(run, path, "the name of an attribute");
  for (;;) {
    const std::size_t dot = left.find('.');
    const std::string part(left.substr(0, dot));
    const bool number = !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
    value = item(run, value, number ? Value(std::int64_t{std::stoi(part)}) : make_text(part));
    if (dot == std::string_view::npos) return value;
    left.remove_prefix(dot + 1);
  }
}

/// What values are compared by: an attribute of theirs, and text without regard to case unless asked.
class SortKey {
 public:
  SortKey(Run& run, const Value* path, bool case_sensitive) : run_(run), path_(path), exact_(case_sensitive) {}
  Value of(const Value& value) const {
    Value key = path_ && !path_->is_none() ? deep_attribute(run_, value, *path_) : value;
    return exact_ || !key.is_string() ? key : run_.text(lower(*key.string()));
  }

 private:
  Run& run_;
  const Value* path_;
  bool exact_;
};

Value sorted(Run& run, const std::vector<Value>& items, const SortKey& key, bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  run.spend(items.size());
  for (const Value& value : items) keyed.emplace_back(key.of(value), value);
  const auto before = [&](const auto& a, const auto& b) {
    run.spend(1);
    return reverse ? compare(run, b.first, a.first) < 0 : compare(run, a.first, b.first) < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), before);
  std::vector<Value> values;
  for (auto& [name, value] : keyed) values.push_back(std::move(value));
  return run.list(std::move(values));
}

Value sort(Run& run, const Value& input, Arguments& arguments) {
  const SortKey key(run, arguments.find(2, "attribute"), flag(arguments, 1, "case_sensitive"));
  return sorted(run, items_of(run, input)->items, key, flag(arguments, 0, "reverse"));
}

Value dictsort(Run& run, const Value& input, Arguments& arguments) {
  if (!input.is_dict()) run.fail(fmt::format("dictsort takes a dictionary, not a {}", type_name(input)));
  const Value* by = arguments.find(1, "by");
  const std::string which = by ? expect_string(run, *by, "what dictsort sorts by") : "key";
  if (which != "key" && which != "value") run.fail("dictsort sorts by 'key' or 'value'");
  const Value place(std::int64_t{which == "value"});
  const SortKey key(run, &place, flag(arguments, 0, "case_sensitive"));
  return sorted(run, dict_items(run, *input.dict()).list()->items, key, flag(arguments, 2, "reverse"));
}

Value unique(Run& run, const Value& input, Arguments& arguments) {
  const SortKey key(run, arguments.find(1, "attribute"), flag(arguments, 0, "case_sensitive"));
  std::vector<Value> seen, kept;
  const ListRef list = items_of(run, input);
  for (const Value& value : list->items) {
    Value name = key.of(value);
    if (std::any_of(seen.begin(), seen.end(), [&](const Value& old) { return equal(run, old, name); })) continue;
    seen.push_back(std::move(name));
    kept.push_back(value);
  }
  return run.list(std::move(kept));
}

template <int sign>
Value extreme(Run& run, const Value& input, Arguments& arguments) {
  const SortKey key(run, arguments.find(1, "attribute"), flag(arguments, 0, "case_sensitive"));
  const ListRef list = items_of(run, input);
  if (list->items.empty()) return run.undefined("min and max of an empty list are undefined");
  const Value* best = &list->items[0];
  for (const Value& value : list->items) {
    run.spend(1);
    if (compare(run, key.of(value), key.of(*best)) * sign > 0) best = &value;
  }
  return *best;
}

Value sum(Run& run, const Value& input, Arguments& arguments) {
  const Value* path = arguments.find(0, "attribute");
  const Value* start = arguments.find(1, "start");
  Value total = start ? *start : Value(std::int64_t{0});
  const ListRef list = items_of(run, input);
  for (const Value& value : list->items) {
    run.spend(1);
    total = calculate(run, Operator::add, total, path && !path->is_none() ? deep_attribute(run, value, *path) : value);
  }
  return total;
}

Value count(Run& run, const Value& input, Arguments&) { return Value(length(run, input)); }

Value join(Run& run, const Value& input, Arguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Value* path = arguments.find(1, "attribute");
  const ListRef list = items_of(run, input);
  std::vector<Value> items = list->items;
  run.spend(items.size());
  if (path && !path->is_none()) {
    for (Value& value : items) value = deep_attribute(run, value, *path);
  }
  return run.text(joined(run, items, separator ? to_text(run, *separator) : ""));
}

template <bool last>
Value end_of(Run& run, const Value& input, Arguments&) {
  const ListRef list = items_of(run, input);
  if (list->items.empty()) return run.undefined("first and last of an empty list are undefined");
  return last ? list->items.back() : list->items.front();
}

Value to_list(Run& run, const Value& input, Arguments&) {
  const ListRef items = items_of(run, input);
  return items->tuple ? run.list(items->items) : Value(items);
}

Value items(Run& run, const Value& input, Arguments&) {
  if (input.is_undefined()) return run.list({});
  if (!input.is_dict()) run.fail(fmt::format("items takes a dictionary, not a {}", type_name(input)));
  return dict_items(run, *input.dict());
}

Value reverse(Run& run, const Value& input, Arguments&) {
  const ListRef list = items_of(run, input);
  run.spend(list->items.size());
  std::vector<Value> turned(list->items.rbegin(), list->items.rend());
  return input.is_string() ? run.text(joined(run, turned, "")) : run.list(std::move(turned));
}

/// What map, select and their kin walk over: Jinja gives them nothing for anything false, none included.
ListRef items_if_any(Run& run, const Value& input) {
  return truth(input) ? items_of(run, input) : *run.list({}).get<ListRef>();
}

/// The arguments from `place` on.
Arguments rest(const Arguments& arguments, std::size_t place) {
  Arguments left;
  const auto from = arguments.positional.begin() + static_cast<std::ptrdiff_t>(place);
  left.positional.assign(from, arguments.positional.end());
  left.named = arguments.named;
  return left;
}

Value map(Run& run, const Value& input, Arguments& arguments) {
  const ListRef list = items_if_any(run, input);
  std::vector<Value> made;
  if (arguments.positional.empty()) {
    const Value* path = arguments.find(0, "attribute");
    const Value* otherwise = arguments.find(1, "default");
    if (path == nullptr) run.fail("map needs a filter or attribute=NAME");
    for (const Value& value : list->items) {
      run.spend(1);
      Value found = deep_attribute(run, value, *path);
      if (found.is_undefined() && otherwise != nullptr) found = *otherwise;
      made.push_back(std::move(found));
    }
    return run.list(std::move(made));
  }
  const std::string& name = expect_string(run, arguments.positional[0], "the filter of map");
  for (const Value& value : list->items) {
    Arguments left = rest(arguments, 1);
    made.push_back(apply_filter(run, name, value, left));
  }
  return run.list(std::move(made));
}

/// select, reject, selectattr, rejectattr: those for which a test holds, or does not.
template <bool wanted, bool by_attribute>
Value choose(Run& run, const Value& input, Arguments& arguments) {
  const std::size_t place = by_attribute ? 1 : 0;
  if (arguments.positional.size() < place) run.fail("selectattr and rejectattr need the name of an attribute");
  const bool has_test = arguments.positional.size() > place;
  const std::string test = has_test ? expect_string(run, arguments.positional[place], "the name of a test") : "";
  std::vector<Value> kept;
  const ListRef list = items_if_any(run, input);
  for (const Value& value : list->items) {
    run.spend(1);
    const Value judged = by_attribute ? deep_attribute(run, value, arguments.positional[0]) : value;
    Arguments left = has_test ? rest(arguments, place + 1) : Arguments{};
    if ((has_test ? apply_test(run, test, judged, left) : truth(judged)) == wanted) kept.push_back(value);
  }
  return run.list(std::move(kept));
}

constexpr FilterRow kFilters[] = {
    {"length", count},
    {"count", count},
    {"join", join},
    {"first", end_of<false>},
    {"last", end_of<true>},
    {"list", to_list},
    {"items", items},
    {"reverse", reverse},
    {"map", map},
    {"select", choose<true, false>},
    {"reject", choose<false, false>},
    {"selectattr", choose<true, true>},
    {"rejectattr", choose<false, true>},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"min", extreme<-1>},
    {"max", extreme<1>},
    {"sum", sum},
};

}  // namespace

std::span<const FilterRow> sequence_filters() noexcept { return kFilters; }

Value apply_filter(Run& run, std::string_view name, const Value& input, Arguments& arguments) {
  run.spend(1);
  for (const std::span<const FilterRow> table : {value_filters(), sequence_filters()}) {
    for (const FilterRow& row : table) {
      if (row.name == name) return row.filter(run, input, arguments);
    }
  }
  run.refuse(fmt::format("the filter '{}' is not supported", name.substr(0, 100)));
}

}  // namespace imago::jinja
