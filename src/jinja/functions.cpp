// The functions that a template may call, and the tests of `is`.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>

#include "imago/error.h"
#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

Value range(Run& run, Arguments& arguments) {
  const std::size_t given = arguments.positional.size();
  if (given < 1 || given > 3 || !arguments.named.empty()) run.fail("range() takes one to three numbers");
  const auto number = [&](std::size_t i) {
    return expect_integer(run, arguments.positional[i], "a number of range()");
  };
  const std::int64_t from = given == 1 ? 0 : number(0), to = number(given == 1 ? 0 : 1);
  const std::int64_t step = given == 3 ? number(2) : 1;
  if (step == 0) run.fail("the step of range() is 0");
  const bool any = step > 0 ? from < to : from > to;
  const auto low = static_cast<std::uint64_t>(step > 0 ? from : to);
  const auto high = static_cast<std::uint64_t>(step > 0 ? to : from);
  const auto magnitude = step > 0 ? static_cast<std::uint64_t>(step) : ~static_cast<std::uint64_t>(step) + 1;
  const std::uint64_t count = any ? (high - low - 1) / magnitude + 1 : 0;
  if (count > kMaxRange) run.fail(fmt::format("range() of {} numbers; the limit is {}", count, kMaxRange));
  run.spend(count);
  std::vector<Value> items;
  for (std::uint64_t i = 0; i < count; ++i) items.emplace_back(from + static_cast<std::int64_t>(i) * step);
  return run.list(std::move(items));
}

/// The values of namespace(a=1) and dict(a=1), which may also start from a dictionary.
Pairs named_values(Run& run, Arguments& arguments, std::string_view what) {
  if (arguments.positional.size() > 1) run.fail(fmt::format("{}() takes a dictionary and named values", what));
  Pairs pairs;
  if (!arguments.positional.empty()) {
    const Dict* dict = arguments.positional[0].dict();
    if (dict == nullptr) run.fail(fmt::format("{}() takes a dictionary and named values", what));
    run.spend(dict->items.size());
    pairs = dict->items;
  }
  for (auto& [name, value] : arguments.named) insert(run, pairs, run.text(std::string(name)), std::move(value));
  return pairs;
}

Value make_dict(Run& run, Arguments& arguments) { return run.dict(named_values(run, arguments, "dict")); }

Value make_namespace(Run& run, Arguments& arguments) {
  Namespace* const made = run.make_namespace();
  for (auto& [name, value] : named_values(run, arguments, "namespace")) {
    run.allocate(sizeof(Value) + 64);
    made->items.emplace_back(expect_string(run, name, "a name of namespace()"), std::move(value));
  }
  return Value(made);
}

Value raise_exception(Run& run, Arguments& arguments) {
  const Value* message = arguments.find(0, "message");
  throw UsageError(fmt::format("the chat template rejects this, line {}: {}", run.line(),
                               message ? to_text(run, *message) : "no reason given"));
}

/// Parses "26 Jul 2024". False for anything else.
bool read_date(std::string_view text, std::tm& date) {
  const std::string copy(text);
  const char* const end = ::strptime(copy.c_str(), "%d %b %Y", &date);
  if (end == nullptr || *end != '\0') return false;
  ::timegm(&date);  // computes the day of the week
  return true;
}

Value strftime_now(Run& run, Arguments& arguments) {
  const Value* given = arguments.find(0, "format");
  if (given == nullptr) run.fail("strftime_now() needs a format");
  const std::string& format = expect_string(run, *given, "the format of strftime_now()");
  std::tm date{};
  if (run.date().empty()) {
    const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
    ::localtime_r(&now, &date);
  } else if (!read_date(run.date(), date)) {
    return run.text(std::string(run.date()));
  }
  // glibc pads to any width given after the percent sign, so only a letter, or a dash and a letter, is allowed.
  for (std::size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    const std::size_t letter = at + 1 < format.size() && format[at + 1] == '-' ? at + 2 : at + 1;
    const char c = letter < format.size() ? format[letter] : '\0';
    const bool known = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '%';
    if (!known) run.fail(fmt::format("strftime_now() does not know the format '{}'", format.substr(0, 100)));
  }
  char buffer[1024];
  const std::size_t bytes = std::strftime(buffer, sizeof buffer, format.c_str(), &date);
  if (bytes == 0 && !format.empty()) run.fail("the result of strftime_now() is empty or exceeds 1023 bytes");
  return run.text(std::string(buffer, bytes));
}

}  // namespace

Builtin find_function(std::string_view name) noexcept {
  if (name == "range") return range;
  if (name == "namespace") return make_namespace;
  if (name == "dict") return make_dict;
  if (name == "raise_exception") return raise_exception;
  if (name == "strftime_now") return strftime_now;
  return nullptr;
}

namespace {

using Test = bool (*)(Run&, const Value&, Arguments&);
struct Row {
  std::string_view name;
  Test test;
};

const Value& other(Run& run, Arguments& arguments) {
  if (arguments.positional.size() != 1) run.fail("the test needs one value to compare with");
  return arguments.positional[0];
}

template <bool (Value::*is)() const noexcept>
bool is_kind(Run&, const Value& value, Arguments&) {
  return (value.*is)();
}
bool is_defined(Run&, const Value& value, Arguments&) { return !value.is_undefined(); }
bool is_boolean(Run&, const Value& value, Arguments&) { return value.get<bool>() != nullptr; }
bool is_true(Run&, const Value& value, Arguments&) { return value.get<bool>() && *value.get<bool>(); }
bool is_false(Run&, const Value& value, Arguments&) { return value.get<bool>() && !*value.get<bool>(); }
bool is_integer(Run&, const Value& value, Arguments&) { return value.get<std::int64_t>() != nullptr; }
bool is_float(Run&, const Value& value, Arguments&) { return value.get<double>() != nullptr; }
/// Strings, lists and dictionaries; also undefined values, as in Jinja.
bool is_sequence(Run&, const Value& value, Arguments&) {
  return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
}
bool is_callable(Run&, const Value& value, Arguments&) { return value.get<Function>() != nullptr; }
bool is_equal(Run& run, const Value& value, Arguments& a) { return equal(run, value, other(run, a)); }
bool is_unequal(Run& run, const Value& value, Arguments& a) { return !equal(run, value, other(run, a)); }
bool is_less(Run& run, const Value& value, Arguments& a) { return compare(run, value, other(run, a)) < 0; }
bool is_at_most(Run& run, const Value& value, Arguments& a) { return compare(run, value, other(run, a)) <= 0; }
bool is_greater(Run& run, const Value& value, Arguments& a) { return compare(run, value, other(run, a)) > 0; }
bool is_at_least(Run& run, const Value& value, Arguments& a) { return compare(run, value, other(run, a)) >= 0; }
bool is_in(Run& run, const Value& value, Arguments& a) { return contains(run, other(run, a), value); }

std::int64_t remainder(Run& run, const Value& value, std::int64_t by) {
  if (by == 0) run.fail("division by zero");
  return by == -1 ? 0 : expect_integer(run, value, "the operand of odd, even or divisibleby") % by;
}
bool is_odd(Run& run, const Value& value, Arguments&) { return remainder(run, value, 2) != 0; }
bool is_even(Run& run, const Value& value, Arguments&) { return remainder(run, value, 2) == 0; }
bool is_divisible(Run& run, const Value& value, Arguments& a) {
  return remainder(run, value, expect_integer(run, other(run, a), "the divisor")) == 0;
}

bool is_lower(Run& run, const Value& value, Arguments&) {
  const std::string text = to_text(run, value);
  return text == lower(text) && text != upper(text);
}
bool is_upper(Run& run, const Value& value, Arguments&) {
  const std::string text = to_text(run, value);
  return text == upper(text) && text != lower(text);
}

constexpr Row kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<&Value::is_undefined>},
    {"none", is_kind<&Value::is_none>},
    {"string", is_kind<&Value::is_string>},
    {"number", is_kind<&Value::is_number>},
    {"mapping", is_kind<&Value::is_dict>},
    {"integer", is_integer},
    {"float", is_float},
    {"boolean", is_boolean},
    {"true", is_true},
    {"false", is_false},
    {"iterable", is_sequence},
    {"sequence", is_sequence},
    {"callable", is_callable},
    {"equalto", is_equal},
    {"eq", is_equal},
    {"==", is_equal},
    {"ne", is_unequal},
    {"!=", is_unequal},
    {"lt", is_less},
    {"lessthan", is_less},
    {"<", is_less},
    {"le", is_at_most},
    {"<=", is_at_most},
    {"gt", is_greater},
    {"greaterthan", is_greater},
    {">", is_greater},
    {"ge", is_at_least},
    {">=", is_at_least},
    {"in", is_in},
    {"odd", is_odd},
    {"even", is_even},
    {"divisibleby", is_divisible},
    {"lower", is_lower},
    {"upper", is_upper},
};

}  // namespace

bool apply_test(Run& run, std::string_view name, const Value& input, Arguments& arguments) {
  run.spend(1);
  const auto row = std::find_if(std::begin(kTests), std::end(kTests), [&](const Row& r) { return r.name == name; });
  if (row == std::end(kTests)) run.refuse(fmt::format("the test '{}' is not supported", name.substr(0, 100)));
  return row->test(run, input, arguments);
}

}  // namespace imago::jinja
