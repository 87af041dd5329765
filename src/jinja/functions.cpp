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
  const std::uint64_t count = count_steps(from, to, step);
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

const Value& other(Run& run, Arguments& arguments) {
  if (arguments.positional.size() != 1) run.fail("the test needs one value to compare with");
  return arguments.positional[0];
}

template <bool (Value::*is)() const noexcept>
bool is_kind(Run&, const Value& value, Arguments&) {
  return (value.*is)();
}
template <class T>
bool is_type(Run&, const Value& value, Arguments&) {
  return value.get<T>() != nullptr;
}
template <bool expected>
bool is_bool(Run&, const Value& value, Arguments&) {
  return value.get<bool>() && *value.get<bool>() == expected;
}
bool is_defined(Run&, const Value& value, Arguments&) { return !value.is_undefined(); }
/// Strings, lists and dictionaries; also undefined values, as in Jinja.
bool is_sequence(Run&, const Value& value, Arguments&) {
  return value.is_string() || value.is_list() || value.is_dict() || value.is_undefined();
}
template <ComparisonOperator comparison>
bool compares(Run& run, const Value& value, Arguments& arguments) {
  return holds(run, comparison, value, other(run, arguments));
}

std::int64_t remainder(Run& run, const Value& value, std::int64_t by) {
  if (by == 0) run.fail("division by zero");
  return by == -1 ? 0 : expect_integer(run, value, "the operand of odd, even or divisibleby") % by;
}
template <bool odd>
bool is_odd(Run& run, const Value& value, Arguments&) {
  return (remainder(run, value, 2) != 0) == odd;
}
bool is_divisible(Run& run, const Value& value, Arguments& arguments) {
  return remainder(run, value, expect_integer(run, other(run, arguments), "the divisor")) == 0;
}

template <std::string (*change)(std::string_view), std::string (*change_back)(std::string_view)>
bool is_case(Run& run, const Value& value, Arguments&) {
  const std::string text = to_text(run, value);
  return text == change(text) && text != change_back(text);
}

using Compare = ComparisonOperator;

constexpr NamedFunction<bool> kTests[] = {
    {"defined", is_defined},
    {"undefined", is_kind<&Value::is_undefined>},
    {"none", is_kind<&Value::is_none>},
    {"string", is_kind<&Value::is_string>},
    {"number", is_kind<&Value::is_number>},
    {"mapping", is_kind<&Value::is_dict>},
    {"integer", is_type<std::int64_t>},
    {"float", is_type<double>},
    {"boolean", is_type<bool>},
    {"true", is_bool<true>},
    {"false", is_bool<false>},
    {"iterable", is_sequence},
    {"sequence", is_sequence},
    {"callable", is_type<Function>},
    {"equalto", compares<Compare::equal>},
    {"eq", compares<Compare::equal>},
    {"==", compares<Compare::equal>},
    {"ne", compares<Compare::unequal>},
    {"!=", compares<Compare::unequal>},
    {"lt", compares<Compare::less>},
    {"lessthan", compares<Compare::less>},
    {"<", compares<Compare::less>},
    {"le", compares<Compare::less_equal>},
    {"<=", compares<Compare::less_equal>},
    {"gt", compares<Compare::greater>},
    {"greaterthan", compares<Compare::greater>},
    {">", compares<Compare::greater>},
    {"ge", compares<Compare::greater_equal>},
    {">=", compares<Compare::greater_equal>},
    {"in", compares<Compare::inside>},
    {"odd", is_odd<true>},
    {"even", is_odd<false>},
    {"divisibleby", is_divisible},
    {"lower", is_case<lower, upper>},
    {"upper", is_case<upper, lower>},
};

}  // namespace

bool apply_test(Run& run, std::string_view name, const Value& input, Arguments& arguments) {
  run.spend(1);
  const auto row = std::ranges::find(kTests, name, &NamedFunction<bool>::name);
  if (row == std::end(kTests)) run.refuse(fmt::format("the test '{}' is not supported", name.substr(0, 100)));
  return row->function(run, input, arguments);
}

}  // namespace imago::jinja
