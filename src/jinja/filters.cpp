// The filters: of text, numbers and single values, then of lists and dictionaries.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

/// Jinja's title: upper case after a blank, a dash or an opening bracket.
std::string title_words(std::string_view text) {
  std::string made;
  std::size_t from = 0;
  for (std::size_t at = 0; at <= text.size(); ++at) {
    const bool cuts =
        at == text.size() || std::string_view("- \t\n\r\f\v([{<").find(text[at]) != std::string_view::npos;
    if (!cuts) continue;
    made += capitalize(text.substr(from, at - from));
    if (at < text.size()) made += text[at];
    from = at + 1;
  }
  return made;
}

Value replace(Run& run, const Value& input, Arguments& arguments) {
  const Value* from = arguments.find(0, "old");
  const Value* to = arguments.find(1, "new");
  const Value* limit = arguments.find_set(2, "count");
  if (from == nullptr || to == nullptr) run.fail("replace needs a text to find and a replacement");
  return run.text(replaced(run, TextOf(run, input).get(), TextOf(run, *from).get(), TextOf(run, *to).get(),
                           limit ? expect_integer(run, *limit, "the count of replace") : -1));
}

Value escape(Run& run, const Value& input, Arguments&) {
  TextBuilder out(run);
  const TextOf text(run, input);
  for (const char& c : text.get()) {
    switch (c) {
      case '&': out << "&amp;"; break;
      case '<': out << "&lt;"; break;
      case '>': out << "&gt;"; break;
      case '"': out << "&#34;"; break;
      case '\'': out << "&#39;"; break;
      default: out << std::string_view(&c, 1);
    }
  }
  return run.text(out.take());
}

/// A margin given as text or as a number of blanks, of which `most` are allowed.
std::string margin_of(Run& run, const Value& given, std::string_view what, std::int64_t most) {
  if (given.is_string()) return *given.string();
  const std::int64_t blanks = expect_integer(run, given, what);
  if (blanks > most) run.fail(fmt::format("{} is {}; the limit is {}", what, blanks, most));
  return std::string(static_cast<std::size_t>(std::max<std::int64_t>(blanks, 0)), ' ');
}

Value indent(Run& run, const Value& input, Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const std::string margin = width ? margin_of(run, *width, "the width of indent", 10000) : std::string(4, ' ');
  const bool blank_too = arguments.flag(2, "blank");
  const TextOf text(run, input);
  TextBuilder out(run);
  if (arguments.flag(1, "first")) out << margin;
  for (std::size_t at = 0; at <= text.get().size();) {
    const std::size_t end = std::min(text.get().find('\n', at), text.get().size());
    if (at > 0 && (blank_too || end > at)) out << margin;
    out << text.get().substr(at, end - at);
    if (end < text.get().size()) out << "\n";
    at = end + 1;
  }
  return run.text(out.take());
}

Value to_string(Run& run, const Value& input, Arguments&) {
  return input.is_string() ? input : run.text(to_text(run, input));
}

Value tojson(Run& run, const Value& input, Arguments& arguments) {
  // As transformers defines it: tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
  JsonStyle style;
  style.ascii = arguments.flag(0, "ensure_ascii");
  style.sorted = arguments.flag(3, "sort_keys");
  if (const Value* margin = arguments.find_set(1, "indent")) {
    style.indent = margin_of(run, *margin, "the indent of tojson", 100);
    style.item_separator = ",";  // the newline replaces the blank
  }
  if (const Value* separators = arguments.find_set(2, "separators")) {
    const List* both = separators->list();
    if (both == nullptr || both->items.size() != 2) run.fail("the separators of tojson are two strings");
    style.item_separator = expect_string(run, both->items[0], "a separator of tojson");
    style.key_separator = expect_string(run, both->items[1], "a separator of tojson");
  }
  return run.text(to_json(run, input, style));
}

Value default_value(Run& run, const Value& input, Arguments& arguments) {
  const Value* other = arguments.find(0, "default_value");
  const bool absent = input.is_undefined() || (arguments.flag(1, "boolean") && !truth(input));
  if (!absent) return input;
  return other ? *other : run.text("");
}

double number_of(Run& run, const Value& value, std::string_view what) {
  if (const double* real = value.get<double>()) return *real;
  return static_cast<double>(expect_integer(run, value, what));
}

template <class Number>
bool parse(std::string_view text, Number& number) {
  text = strip(text, Side::both);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Value whole_part(double real, const Value& otherwise) {
  constexpr double kLimit = 9.2233720368547758e18;
  return real > -kLimit && real < kLimit ? Value(static_cast<std::int64_t>(real)) : otherwise;
}

Value to_integer(Run&, const Value& input, Arguments& arguments) {
  const Value* given = arguments.find(0, "default");
  Value otherwise = given ? *given : Value(std::int64_t{0});
  if (const bool* boolean = input.get<bool>()) return Value(std::int64_t{*boolean ? 1 : 0});
  if (input.get<std::int64_t>()) return input;
  if (const double* real = input.get<double>()) return whole_part(*real, otherwise);
  std::int64_t integer = 0;
  double real = 0;
  if (const std::string* text = input.string()) {
    if (parse(*text, integer)) return Value(integer);
    if (parse(*text, real)) return whole_part(real, otherwise);
  }
  return otherwise;
}

Value to_float(Run& run, const Value& input, Arguments& arguments) {
  const Value* given = arguments.find(0, "default");
  if (input.is_number()) return Value(number_of(run, input, "float"));
  double real = 0;
  if (input.is_string() && parse(*input.string(), real)) return Value(real);
  return given ? *given : Value(0.0);
}

Value absolute(Run& run, const Value& input, Arguments&) {
  if (const double* real = input.get<double>()) return Value(std::fabs(*real));
  const std::int64_t integer = expect_integer(run, input, "the operand of abs");
  if (integer == std::numeric_limits<std::int64_t>::min()) run.fail("abs does not fit 64 bits");
  return Value(integer < 0 ? -integer : integer);
}

Value round_filter(Run& run, const Value& input, Arguments& arguments) {
  const Value* given = arguments.find(0, "precision");
  const Value* method = arguments.find(1, "method");
  const std::string how = method ? expect_string(run, *method, "the method of round") : "common";
  const std::int64_t places = given ? expect_integer(run, *given, "the precision of round") : 0;
  if (places < -300 || places > 300) run.fail(fmt::format("round to {} places; -300 to 300 are possible", places));
  const double value = number_of(run, input, "the operand of round");
  const double scale = std::pow(10.0, static_cast<double>(places));
  if (how == "ceil") return Value(std::ceil(value * scale) / scale);
  if (how == "floor") return Value(std::floor(value * scale) / scale);
  if (how != "common")
    run.fail(fmt::format("the method of round is common, ceil or floor, not '{}'", how.substr(0, 100)));
  if (!input.get<double>() && places >= 0) return Value(expect_integer(run, input, "the operand of round"));
  if (places < 0) {
    const double rounded = std::nearbyint(value * scale) / scale;
    return input.get<double>() ? Value(rounded) : whole_part(rounded, Value(rounded));
  }
  // Via decimal digits, as Python does, so that 2.675 does not become 2.68.
  double rounded = value;
  const std::string digits = fmt::format("{:.{}f}", value, places);
  std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
  return Value(rounded);
}

/// The attribute "a.b.0" of a value.
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

/// The key by which values are compared: an attribute or the value itself, ignoring case unless `case_sensitive`.
class SortKey {
 public:
  SortKey(Run& run, const Value* path, bool case_sensitive) : run_(run), path_(path), exact_(case_sensitive) {}
  Value of(const Value& value) const {
    Value key = path_ ? deep_attribute(run_, value, *path_) : value;
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
  const SortKey key(run, arguments.find_set(2, "attribute"), arguments.flag(1, "case_sensitive"));
  return sorted(run, items_of(run, input)->items, key, arguments.flag(0, "reverse"));
}

Value dictsort(Run& run, const Value& input, Arguments& arguments) {
  if (!input.is_dict()) run.fail(fmt::format("dictsort takes a dictionary, not a {}", type_name(input)));
  const Value* by = arguments.find(1, "by");
  const std::string which = by ? expect_string(run, *by, "what dictsort sorts by") : "key";
  if (which != "key" && which != "value") run.fail("dictsort sorts by 'key' or 'value'");
  const Value place(std::int64_t{which == "value"});
  const SortKey key(run, &place, arguments.flag(0, "case_sensitive"));
  return sorted(run, dict_items(run, *input.dict()).list()->items, key, arguments.flag(2, "reverse"));
}

Value unique(Run& run, const Value& input, Arguments& arguments) {
  const SortKey key(run, arguments.find_set(1, "attribute"), arguments.flag(0, "case_sensitive"));
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
  const SortKey key(run, arguments.find_set(1, "attribute"), arguments.flag(0, "case_sensitive"));
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
  const Value* path = arguments.find_set(0, "attribute");
  const Value* start = arguments.find(1, "start");
  Value total = start ? *start : Value(std::int64_t{0});
  const ListRef list = items_of(run, input);
  for (const Value& value : list->items) {
    run.spend(1);
    total = calculate(run, ArithmeticOperator::add, total, path ? deep_attribute(run, value, *path) : value);
  }
  return total;
}

Value count(Run& run, const Value& input, Arguments&) { return Value(length(run, input)); }

Value join(Run& run, const Value& input, Arguments& arguments) {
  const Value* separator = arguments.find(0, "d");
  const Value* path = arguments.find_set(1, "attribute");
  const ListRef list = items_of(run, input);
  std::vector<Value> items = list->items;
  run.spend(items.size());
  if (path) {
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

/// The items for map, select and the like: none for any false value, as in Jinja.
ListRef items_if_any(Run& run, const Value& input) {
  return truth(input) ? items_of(run, input) : *run.list({}).get<ListRef>();
}

/// The arguments starting at `place`.
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

/// select, reject, selectattr and rejectattr: the items for which a test holds, or does not.
template <bool selected, bool by_attribute>
Value choose(Run& run, const Value& input, Arguments& arguments) {
  const std::size_t place = by_attribute ? 1 : 0;
  if (arguments.positional.size() < place) run.fail("selectattr and rejectattr need the name of an attribute");
  const bool has_test = arguments.positional.size() > place;
  const std::string test = has_test ? expect_string(run, arguments.positional[place], "the name of a test") : "";
  std::vector<Value> kept;
  const ListRef list = items_if_any(run, input);
  for (const Value& value : list->items) {
    run.spend(1);
    const Value tested = by_attribute ? deep_attribute(run, value, arguments.positional[0]) : value;
    Arguments left = has_test ? rest(arguments, place + 1) : Arguments{};
    if ((has_test ? apply_test(run, test, tested, left) : truth(tested)) == selected) kept.push_back(value);
  }
  return run.list(std::move(kept));
}

constexpr NamedFunction<Value> kFilters[] = {
    {"upper", change_text<upper>},
    {"lower", change_text<lower>},
    {"title", change_text<title_words>},
    {"capitalize", change_text<capitalize>},
    {"trim", strip_text<Side::both>},
    {"replace", replace},
    {"escape", escape},
    {"e", escape},
    {"safe", to_string},
    {"indent", indent},
    {"string", to_string},
    {"tojson", tojson},
    {"default", default_value},
    {"d", default_value},
    {"int", to_integer},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_filter},
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

Value apply_filter(Run& run, std::string_view name, const Value& input, Arguments& arguments) {
  run.spend(1);
  const auto row = std::ranges::find(kFilters, name, &NamedFunction<Value>::name);
  if (row == std::end(kFilters)) run.refuse(fmt::format("the filter '{}' is not supported", name.substr(0, 100)));
  return row->function(run, input, arguments);
}

}  // namespace imago::jinja
