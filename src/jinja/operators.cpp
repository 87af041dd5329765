// Values and the operators on them, as Python defines them.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "jinja/run.h"
#include "jinja/text.h"
#include "jinja/value.h"

namespace imago::jinja {

namespace {

std::optional<std::int64_t> whole(const Value& value) noexcept {
  if (const bool* boolean = value.get<bool>()) return *boolean ? 1 : 0;
  if (const std::int64_t* integer = value.get<std::int64_t>()) return *integer;
  return std::nullopt;
}

/// A number as double. Integers beyond 2^53 compare as the nearest double, which does not matter to templates.
double real(const Value& value) noexcept {
  const double* held = value.get<double>();
  return held ? *held : static_cast<double>(*whole(value));
}

/// The value of the first item whose key fits; null if there is none.
template <class Items, class Fits>
const Value* find_item(const Items& items, Fits fits) noexcept {
  const auto found = std::ranges::find_if(items, [&](const auto& item) { return fits(item.first); });
  return found == items.end() ? nullptr : &found->second;
}

}  // namespace

const Value* Dict::find(std::string_view key) const noexcept {
  return find_item(items, [&](const Value& name) { return name.is_string() && *name.string() == key; });
}

const Value* Dict::find(const Value& key) const noexcept {
  if (const std::string* text = key.string()) return find(*text);
  return find_item(items, [&](const Value& name) { return equal_plain(name, key); });
}

const Value* Namespace::find(std::string_view name) const noexcept {
  return find_item(items, [&](std::string_view key) { return key == name; });
}

Value make_text(std::string text) { return Value(std::make_shared<const std::string>(std::move(text))); }

bool truth(const Value& value) noexcept {
  if (value.is_none() || value.is_undefined()) return false;
  if (value.is_number()) return real(value) != 0;
  if (const std::string* text = value.string()) return !text->empty();
  if (const List* list = value.list()) return !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->items.empty();
  return true;
}

bool equal_plain(const Value& a, const Value& b) noexcept {
  if (a.is_number() && b.is_number()) {
    const std::int64_t* x = a.get<std::int64_t>();
    const std::int64_t* y = b.get<std::int64_t>();
    return x && y ? *x == *y : real(a) == real(b);
  }
  if (a.is_none() || a.is_undefined()) return a.is_none() ? b.is_none() : b.is_undefined();
  if (a.is_string()) return b.is_string() && *a.string() == *b.string();
  if (Namespace* const* x = a.get<Namespace*>()) {
    Namespace* const* y = b.get<Namespace*>();
    return y && *x == *y;
  }
  if (const Function* x = a.get<Function>()) {
    const Function* y = b.get<Function>();
    return y && x->builtin == y->builtin && x->macro == y->macro;
  }
  return false;
}

std::string_view type_name(const Value& value) noexcept {
  static constexpr std::string_view kNames[] = {
      "None",        "undefined value", "bool object",      "int object", "float object", "str object",
      "list object", "dict object",     "namespace object", "loop",       "function"};
  return value.is_list() && value.list()->tuple ? "tuple object" : kNames[value.type_index()];
}

int depth_of(const Value& value) noexcept {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

namespace {

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};  // by ArithmeticOperator
std::string_view sign_of(ArithmeticOperator operation) noexcept { return kSigns[static_cast<std::size_t>(operation)]; }

[[noreturn]] void fail_operands(Run& run, std::string_view sign, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) run.fail(*value->get<Undefined>()->why);
  }
  run.fail(fmt::format("'{}' does not work with a {} and a {}", sign, type_name(a), type_name(b)));
}

std::int64_t floor_division(std::int64_t a, std::int64_t b) noexcept {
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

/// None if the result does not fit 64 bits.
std::optional<std::int64_t> calculate_whole(ArithmeticOperator operation, std::int64_t a, std::int64_t b) noexcept {
  std::int64_t result = 0;
  if (operation == ArithmeticOperator::add && !__builtin_add_overflow(a, b, &result)) return result;
  if (operation == ArithmeticOperator::subtract && !__builtin_sub_overflow(a, b, &result)) return result;
  if (operation == ArithmeticOperator::multiply && !__builtin_mul_overflow(a, b, &result)) return result;
  const bool divides = operation == ArithmeticOperator::floor_divide || operation == ArithmeticOperator::modulo;
  if (divides && b == -1)
    return operation == ArithmeticOperator::modulo ? 0 : calculate_whole(ArithmeticOperator::subtract, 0, a);
  if (operation == ArithmeticOperator::floor_divide) return floor_division(a, b);
  if (operation == ArithmeticOperator::modulo) return a - floor_division(a, b) * b;
  if (operation == ArithmeticOperator::power) {
    result = 1;
    for (std::int64_t bit = std::int64_t{1} << 62; bit != 0; bit >>= 1) {
      if (__builtin_mul_overflow(result, result, &result)) return std::nullopt;
      if ((b & bit) != 0 && __builtin_mul_overflow(result, a, &result)) return std::nullopt;
    }
    return result;
  }
  return std::nullopt;
}

double calculate_real(ArithmeticOperator operation, double a, double b) noexcept {
  switch (operation) {
    case ArithmeticOperator::add: return a + b;
    case ArithmeticOperator::subtract: return a - b;
    case ArithmeticOperator::multiply: return a * b;
    case ArithmeticOperator::divide: return a / b;
    case ArithmeticOperator::floor_divide: return std::floor(a / b);
    case ArithmeticOperator::modulo: return a - std::floor(a / b) * b;
    case ArithmeticOperator::power: break;
  }
  return std::pow(a, b);
}

Value calculate_number(Run& run, ArithmeticOperator operation, const Value& a, const Value& b) {
  const bool divides = operation == ArithmeticOperator::divide || operation == ArithmeticOperator::floor_divide ||
                       operation == ArithmeticOperator::modulo;
  if (divides && real(b) == 0) run.fail("division by zero");
  const std::optional<std::int64_t> x = whole(a), y = whole(b);
  if (x && y && operation != ArithmeticOperator::divide && !(operation == ArithmeticOperator::power && *y < 0)) {
    if (const auto result = calculate_whole(operation, *x, *y)) return Value(*result);
    run.fail(fmt::format("{} {} {} does not fit 64 bits", *x, sign_of(operation), *y));
  }
  return Value(calculate_real(operation, real(a), real(b)));
}

Value repeated(Run& run, const Value& value, std::int64_t times) {
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const std::size_t size = value.is_string() ? value.string()->size() : value.list()->items.size();
  if (size != 0 && count > kMaxTextBytes / size) {
    run.fail(fmt::format("{} times a {} of {} exceeds the limit of {}", times, type_name(value), size, kMaxTextBytes));
  }
  if (const std::string* text = value.string()) {
    std::string made;
    made.reserve(size * count);
    for (std::size_t i = 0; i < count && size != 0; ++i) made += *text;
    return run.text(std::move(made));
  }
  run.allocate(size * count * sizeof(Value));
  std::vector<Value> made;
  for (std::size_t i = 0; i < count && size != 0; ++i) {
    made.insert(made.end(), value.list()->items.begin(), value.list()->items.end());
  }
  return run.list(std::move(made), value.list()->tuple);
}

}  // namespace

Value calculate(Run& run, ArithmeticOperator operation, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return calculate_number(run, operation, a, b);
  if (operation == ArithmeticOperator::add && a.is_string() && b.is_string()) {
    run.expect_text_size(a.string()->size() + b.string()->size());
    return run.text(*a.string() + *b.string());
  }
  if (operation == ArithmeticOperator::add && a.is_list() && b.is_list() && a.list()->tuple == b.list()->tuple) {
    run.allocate((a.list()->items.size() + b.list()->items.size()) * sizeof(Value));
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return run.list(std::move(items), a.list()->tuple);
  }
  if (operation == ArithmeticOperator::multiply) {
    if ((a.is_string() || a.is_list()) && whole(b)) return repeated(run, a, *whole(b));
    if ((b.is_string() || b.is_list()) && whole(a)) return repeated(run, b, *whole(a));
  }
  if (operation == ArithmeticOperator::modulo && a.is_string())
    run.refuse("formatting by '%' is not supported; use '~'");
  fail_operands(run, sign_of(operation), a, b);
}

bool equal(Run& run, const Value& a, const Value& b) {
  run.spend(1);
  if (a.is_list() && b.is_list()) {
    const List &x = *a.list(), &y = *b.list();
    return x.tuple == y.tuple && std::equal(x.items.begin(), x.items.end(), y.items.begin(), y.items.end(),
                                            [&](const Value& i, const Value& j) { return equal(run, i, j); });
  }
  if (a.is_dict() && b.is_dict()) {
    const Dict &x = *a.dict(), &y = *b.dict();
    return x.items.size() == y.items.size() && std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
             run.touch(y.items.size() * 8);
             const Value* other = y.find(item.first);
             return other != nullptr && equal(run, item.second, *other);
           });
  }
  return equal_plain(a, b);
}

int compare(Run& run, const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (whole(a) && whole(b)) return *whole(a) < *whole(b) ? -1 : *whole(a) > *whole(b) ? 1 : 0;
    return real(a) < real(b) ? -1 : real(a) > real(b) ? 1 : 0;
  }
  if (a.is_string() && b.is_string()) {
    run.touch(std::min(a.string()->size(), b.string()->size()));
    const int order = a.string()->compare(*b.string());  // UTF-8 sorts like its code points
    return order < 0 ? -1 : order > 0 ? 1 : 0;
  }
  if (a.is_list() && b.is_list() && a.list()->tuple == b.list()->tuple) {
    const std::vector<Value>&x = a.list()->items, &y = b.list()->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      run.spend(1);
      if (!equal(run, x[i], y[i])) return compare(run, x[i], y[i]);
    }
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail_operands(run, "<", a, b);
}

bool contains(Run& run, const Value& container, const Value& value) {
  if (const std::string* text = container.string()) {
    if (value.is_undefined()) run.fail(*value.get<Undefined>()->why);
    const std::string* wanted = value.string();
    if (wanted == nullptr) fail_operands(run, "in", value, container);
    run.touch(text->size());
    return text->find(*wanted) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    run.touch(dict->items.size() * 8);
    return dict->find(value) != nullptr;
  }
  if (!container.is_list() && !container.is_undefined()) fail_operands(run, "in", value, container);
  const ListRef list = items_of(run, container);
  const auto& items = list->items;
  run.touch(items.size() * 8);
  return std::any_of(items.begin(), items.end(), [&](const Value& item) { return equal(run, item, value); });
}

bool holds(Run& run, ComparisonOperator comparison, const Value& a, const Value& b) {
  if (const std::string* text = a.string()) run.touch(text->size());
  switch (comparison) {
    case ComparisonOperator::equal: return equal(run, a, b);
    case ComparisonOperator::unequal: return !equal(run, a, b);
    case ComparisonOperator::inside: return contains(run, b, a);
    case ComparisonOperator::outside: return !contains(run, b, a);
    case ComparisonOperator::less: return compare(run, a, b) < 0;
    case ComparisonOperator::less_equal: return compare(run, a, b) <= 0;
    case ComparisonOperator::greater: return compare(run, a, b) > 0;
    case ComparisonOperator::greater_equal: break;
  }
  return compare(run, a, b) >= 0;
}

std::uint64_t count_steps(std::int64_t from, std::int64_t to, std::int64_t step) noexcept {
  const auto low = static_cast<std::uint64_t>(step > 0 ? from : to);
  const auto high = static_cast<std::uint64_t>(step > 0 ? to : from);
  const auto magnitude = step > 0 ? static_cast<std::uint64_t>(step) : ~static_cast<std::uint64_t>(step) + 1;
  const bool any = step > 0 ? from < to : from > to;
  return any ? (high - low - 1) / magnitude + 1 : 0;
}

Value slice(Run& run, const Value& value, const Value& from, const Value& to, const Value& step) {
  if (value.is_undefined()) run.fail(*value.get<Undefined>()->why);
  if (!value.is_string() && !value.is_list()) run.fail(fmt::format("a {} cannot be sliced", type_name(value)));
  const Characters characters(value.is_string() ? std::string_view(*value.string()) : std::string_view());
  if (value.is_string()) run.touch(value.string()->size());
  const auto size = static_cast<std::int64_t>(value.is_string() ? characters.size() : value.list()->items.size());
  const std::int64_t stride = step.is_none() ? 1 : expect_integer(run, step, "the step of a slice");
  if (stride == 0) run.fail("the step of a slice is 0");
  const std::int64_t low = stride > 0 ? 0 : -1, high = stride > 0 ? size : size - 1;
  const auto bound = [&](const Value& given, std::int64_t absent) {
    if (given.is_none()) return absent;
    std::int64_t at = expect_integer(run, given, "the bound of a slice");
    if (at < 0) at = at < -size ? low : at + size;
    return std::clamp(at, low, high);
  };
  const std::int64_t first = bound(from, stride > 0 ? low : high), last = bound(to, stride > 0 ? high : low);

  std::string text;
  std::vector<Value> items;
  if (value.is_string() && stride == 1) {
    if (first < last) text = characters.range(static_cast<std::size_t>(first), static_cast<std::size_t>(last));
    return run.text(std::move(text));
  }
  const std::uint64_t count = count_steps(first, last, stride);
  run.spend(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto at = static_cast<std::size_t>(first + static_cast<std::int64_t>(i) * stride);
    if (value.is_string()) {
      text += characters.range(at, at + 1);
    } else {
      items.push_back(value.list()->items[at]);
    }
  }
  return value.is_string() ? run.text(std::move(text)) : run.list(std::move(items), value.list()->tuple);
}

void insert(Run& run, Pairs& pairs, Value key, Value value) {
  if (key.is_list() || key.is_dict()) run.fail(fmt::format("a {} cannot be a key", type_name(key)));
  run.touch(pairs.size() * 8);
  const auto known = std::ranges::find_if(pairs, [&](const auto& pair) { return equal_plain(pair.first, key); });
  if (known == pairs.end()) {
    pairs.emplace_back(std::move(key), std::move(value));
  } else {
    known->second = std::move(value);
  }
}

}  // namespace imago::jinja
