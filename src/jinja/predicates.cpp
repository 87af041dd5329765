// The tests of `is`.

#include <fmt/format.h>

#include <algorithm>

#include "jinja/run.h"
#include "jinja/text.h"

namespace imago::jinja {

namespace {

using Test = bool (*)(Run&, const Value&, Arguments&);
struct Row {
  std::string_view name;
  Test test;
};

const Value& other(Run& run, Arguments& arguments) {
  if (arguments.positional.size() != 1) run.fail("the test takes one value to compare with");
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
/// What has a length and items: text, lists, dictionaries; an undefined value counts, as in Jinja.
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
  return by == -1 ? 0 : expect_integer(run, value, "what is odd, even or divisible") % by;
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
