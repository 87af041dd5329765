// The functions that a template may call.

#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "imago/error.h"
#include "jinja/operators.h"
#include "jinja/run.h"

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
  if (count > kMaxRange) run.fail(fmt::format("range() of {} numbers; {} are allowed", count, kMaxRange));
  run.spend(count);
  std::vector<Value> items;
  for (std::uint64_t i = 0; i < count; ++i) items.emplace_back(from + static_cast<std::int64_t>(i) * step);
  return run.list(std::move(items));
}

/// namespace(a=1) and dict(a=1); both also take a dictionary to start from.
Pairs named_values(Run& run, Arguments& arguments, std::string_view what) {
  if (arguments.positional.size() > 1) run.fail(fmt::format("{}() takes one dictionary and names", what));
  Pairs pairs;
  if (!arguments.positional.empty()) {
    const Dict* dict = arguments.positional[0].dict();
    if (dict == nullptr) run.fail(fmt::format("{}() takes a dictionary and names", what));
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
  throw UsageError(fmt::format("the chat template refuses, line {}: {}", run.line(),
                               message ? to_text(run, *message) : "no reason given"));
}

/// Reads "26 Jul 2024". False if it is anything else.
bool read_date(std::string_view text, std::tm& date) {
  const std::string copy(text);
  const char* const end = ::strptime(copy.c_str(), "%d %b %Y", &date);
  if (end == nullptr || *end != '\0') return false;
  ::timegm(&date);  // finds the day of the week
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
  // glibc pads to any width that stands after the percent sign: one letter only, or a dash and a letter.
  for (std::size_t at = format.find('%'); at != std::string::npos; at = format.find('%', at + 2)) {
    const std::size_t letter = at + 1 < format.size() && format[at + 1] == '-' ? at + 2 : at + 1;
    const char c = letter < format.size() ? format[letter] : '\0';
    const bool known = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '%';
    if (!known) run.fail(fmt::format("strftime_now() does not know the format '{}'", format.substr(0, 100)));
  }
  char buffer[1024];
  const std::size_t bytes = std::strftime(buffer, sizeof buffer, format.c_str(), &date);
  if (bytes == 0 && !format.empty()) run.fail("the format of strftime_now() gives nothing, or more than 1023 bytes");
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

}  // namespace imago::jinja
