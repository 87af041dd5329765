// Filters of text, numbers and single values.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "jinja/filters.h"
#include "jinja/text.h"
#include "jinja/text_operations.h"
#include "jinja/writer.h"

namespace imago::jinja {

namespace {

template <std::string (*change)(std::string_view)>
Value change_filter(Run& run, const Value& input, Arguments&) {
  const TextOf text(run, input);
  run.touch(text.get().size() * 8);
  return run.text(change(text.get()));
}

/// A letter large after a blank, a dash or an opening bracket, which is Jinja's own idea of titles.
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

Value trim(Run& run, const Value& input, Arguments& arguments) {
  const TextOf text(run, input);
  const Value* set = arguments.find(0, "chars");
  return run.text(std::string(set && !set->is_none()
                                  ? strip(text.get(), Side::both, expect_string(run, *set, "the characters to trim"))
                                  : strip(text.get(), Side::both)));
}

Value replace(Run& run, const Value& input, Arguments& arguments) {
  const Value* from = arguments.find(0, "old");
  const Value* to = arguments.find(1, "new");
  const Value* limit = arguments.find(2, "count");
  if (from == nullptr || to == nullptr) run.fail("replace needs what to look for and what to put in");
  const bool all = limit == nullptr || limit->is_none();
  return run.text(replaced(run, TextOf(run, input).get(), TextOf(run, *from).get(), TextOf(run, *to).get(),
                           all ? -1 : expect_integer(run, *limit, "the count of replace")));
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

Value indent(Run& run, const Value& input, Arguments& arguments) {
  const Value* width = arguments.find(0, "width");
  const Value* first = arguments.find(1, "first");
  const Value* blank = arguments.find(2, "blank");
  std::string margin(4, ' ');
  if (width && width->is_string()) margin = *width->string();
  if (width && !width->is_string()) {
    const std::int64_t blanks = expect_integer(run, *width, "the width of indent");
    if (blanks > 10000) run.fail(fmt::format("indent by {}; 10000 are allowed", blanks));
    margin.assign(static_cast<std::size_t>(std::max<std::int64_t>(blanks, 0)), ' ');
  }
  const TextOf text(run, input);
  const bool blank_too = blank && truth(*blank);
  TextBuilder out(run);
  if (first && truth(*first)) out << margin;
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

Value pass(Run& run, const Value& input, Arguments& arguments) { return to_string(run, input, arguments); }

Value tojson(Run& run, const Value& input, Arguments& arguments) {
  JsonStyle style;
  // As transformers defines it: tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False).
  const Value* ascii = arguments.find(0, "ensure_ascii");
  const Value* margin = arguments.find(1, "indent");
  const Value* separators = arguments.find(2, "separators");
  const Value* sorted = arguments.find(3, "sort_keys");
  style.ascii = ascii && truth(*ascii);
  style.sorted = sorted && truth(*sorted);
  if (margin && margin->is_string()) style.indent = *margin->string();
  if (margin && !margin->is_none() && !margin->is_string()) {
    const std::int64_t blanks = expect_integer(run, *margin, "the indent of tojson");
    if (blanks > 100) run.fail(fmt::format("tojson with an indent of {}; 100 are allowed", blanks));
    style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(blanks, 0)), ' ');
  }
  if (style.indent) style.item_separator = ",";  // the newline takes the place of the blank
  if (separators && !separators->is_none()) {
    const List* both = separators->list();
    if (both == nullptr || both->items.size() != 2) run.fail("the separators of tojson are two strings");
    style.item_separator = expect_string(run, both->items[0], "a separator of tojson");
    style.key_separator = expect_string(run, both->items[1], "a separator of tojson");
  }
  return run.text(to_json(run, input, style));
}

Value default_value(Run& run, const Value& input, Arguments& arguments) {
  const Value* other = arguments.find(0, "default_value");
  const Value* falsy = arguments.find(1, "boolean");
  const bool absent = input.is_undefined() || (falsy && truth(*falsy) && !truth(input));
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
  const Value otherwise = given ? *given : Value(std::int64_t{0});
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
  if (places < -300 || places > 300) run.fail(fmt::format("round to {} places; -300 to 300 are allowed", places));
  const double value = number_of(run, input, "the operand of round");
  const double scale = std::pow(10.0, static_cast<double>(places));
  if (how == "ceil") return Value(std::ceil(value * scale) / scale);
  if (how == "floor") return Value(std::floor(value * scale) / scale);
  if (how != "common") run.fail(fmt::format("round knows common, ceil and floor, not '{}'", how.substr(0, 100)));
  if (!input.get<double>() && places >= 0) return Value(expect_integer(run, input, "the operand of round"));
  if (places < 0) {
    const double rounded = std::nearbyint(value * scale) / scale;
    return input.get<double>() ? Value(rounded) : whole_part(rounded, Value(rounded));
  }
  // Through decimal digits, which is how Python avoids 2.675 becoming 2.68.
  double rounded = value;
  const std::string digits = fmt::format("{:.{}f}", value, places);
  std::from_chars(digits.data(), digits.data() + digits.size(), rounded);
  return Value(rounded);
}

constexpr FilterRow kFilters[] = {
    {"upper", change_filter<upper>},
    {"lower", change_filter<lower>},
    {"title", change_filter<title_words>},
    {"capitalize", change_filter<capitalize>},
    {"trim", trim},
    {"replace", replace},
    {"escape", escape},
    {"e", escape},
    {"safe", pass},
    {"indent", indent},
    {"string", to_string},
    {"tojson", tojson},
    {"default", default_value},
    {"d", default_value},
    {"int", to_integer},
    {"float", to_float},
    {"abs", absolute},
    {"round", round_filter},
};

}  // namespace

std::span<const FilterRow> value_filters() noexcept { return kFilters; }

}  // namespace imago::jinja
