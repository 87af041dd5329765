#include "models/fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>

#include "imago/error.h"
#include "models/traits_reading.h"

namespace imago::models {

double Fields::positive(std::string_view key, double high) const {
  const double number = read_number(key);
  if (!(number > 0 && number <= high)) {
    fail_at(key, fmt::format("must be above 0 and at most {}, not {}", high, number));
  }
  if (number < kMinPositive) fail_at(key, fmt::format("is {}, too small to compute with", number));
  return number;
}

double Fields::multiplier(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const double number = read_number(key);
  if (!(std::abs(number) >= 1 / kMaxFactor && std::abs(number) <= kMaxFactor)) {
    fail_at(key, fmt::format("must be from {} to {}, with either sign, not {}", 1 / kMaxFactor, kMaxFactor, number));
  }
  return number;
}

void Fields::refuse(std::string_view problem) const { throw UnsupportedError(fmt::format("{}: {}", file_, problem)); }

// ---- config.json

ConfigFields::ConfigFields(files::JsonValue object, std::string_view file, std::string_view prefix)
    : Fields(file, prefix), object_(object), path_(file) {
  object_.members(prefix.empty() ? "the config" : prefix);
}

bool ConfigFields::states(std::string_view key) const {
  for (const files::JsonMember member : object_.members("the config")) {
    if (member.key == key) return true;
  }
  return false;
}

std::optional<ConfigFields> ConfigFields::object(std::string_view key) const {
  const std::optional<files::JsonValue> value = object_.find(key);
  if (!value) return std::nullopt;
  return ConfigFields(*value, path_, full(key) + ".");
}

files::JsonValue ConfigFields::require(std::string_view key) const {
  const std::optional<files::JsonValue> value = object_.find(key);
  if (!value) object_.fail(fmt::format("'{}' is missing", full(key)));
  return *value;
}

std::size_t ConfigFields::read_size(std::string_view key, std::int64_t high) const {
  return static_cast<std::size_t>(require(key).integral(full(key), 1, high));
}

void ConfigFields::fail_at(std::string_view key, std::string_view problem) const {
  require(key).fail(fmt::format("{} {}", full(key), problem));
}

// ---- GGUF

namespace {

/// A float32 as the number that was meant: 1e-6 and not 9.99999997e-07, so that a model which came from a config.json
/// has the same traits as before, and goes back with the same digits.
double meant(float stored) {
  std::array<char, 32> digits{};
  const auto written = std::to_chars(digits.data(), digits.data() + digits.size(), stored);
  double value = 0;
  std::from_chars(digits.data(), written.ptr, value);
  return value;
}

}  // namespace

void GgufFields::fail(std::string_view problem) const { throw FormatError(source_.path(), 0, problem); }
void GgufFields::fail_at(std::string_view key, std::string_view problem) const {
  fail(fmt::format("'{}' {}", full(key), problem));
}

std::vector<std::int64_t> GgufFields::integers(std::string_view key, std::int64_t high) const {
  const GgufArray& array = *source_.require(full(key)).array();
  const bool numbers = array.strings().empty() && array.type() != GgufType::f32 && array.type() != GgufType::f64 &&
                       array.type() != GgufType::boolean;
  if (!numbers || array.size() == 0) fail_at(key, "must be a whole number");
  std::vector<std::int64_t> values = array.integers();
  for (const std::int64_t value : values) {
    if (value < 1 || value > high) fail_at(key, fmt::format("must be from 1 to {}, not {}", high, value));
  }
  return values;
}

std::size_t GgufFields::read_size(std::string_view key, std::int64_t high) const {
  const GgufValue* value = source_.find(full(key));
  if (value == nullptr || value->array() == nullptr) {
    return static_cast<std::size_t>(source_.require_integer(full(key), 1, high));
  }
  const std::vector<std::int64_t> values = integers(key, high);
  if (std::ranges::adjacent_find(values, std::not_equal_to()) != values.end()) {
    refuse(fmt::format("'{}' differs between blocks, which is not supported", full(key)));
  }
  return static_cast<std::size_t>(values[0]);
}

std::vector<std::size_t> GgufFields::sizes(std::string_view key, std::int64_t high, std::size_t blocks) const {
  const GgufValue* value = source_.find(full(key));
  if (value == nullptr || value->array() == nullptr) return std::vector<std::size_t>(blocks, size(key, high));
  const std::vector<std::int64_t> values = integers(key, high);
  if (values.size() < blocks) fail_at(key, fmt::format("has {} entries for {} blocks", values.size(), blocks));
  std::vector<std::size_t> made;
  for (std::size_t i = 0; i < blocks; ++i) made.push_back(static_cast<std::size_t>(values[i]));
  return made;
}

std::size_t GgufFields::count(std::string_view key, std::int64_t high, std::size_t fallback) const {
  return has(key) ? static_cast<std::size_t>(source_.require_integer(full(key), 0, high)) : fallback;
}

std::vector<std::size_t> GgufFields::counts(std::string_view key, std::int64_t high, std::size_t blocks) const {
  const GgufArray* array = source_.require(full(key)).array();
  if (array == nullptr) return std::vector<std::size_t>(blocks, count(key, high, 0));
  const bool numbers = array->strings().empty() && array->type() != GgufType::f32 && array->type() != GgufType::f64 &&
                       array->type() != GgufType::boolean;
  if (!numbers) fail_at(key, "must be whole numbers");
  const std::vector<std::int64_t> values = array->integers();
  if (values.size() < blocks) fail_at(key, fmt::format("has {} entries for {} blocks", values.size(), blocks));
  std::vector<std::size_t> made;
  for (std::size_t i = 0; i < blocks; ++i) {
    if (values[i] < 0 || values[i] > high) fail_at(key, fmt::format("must be from 0 to {}, not {}", high, values[i]));
    made.push_back(static_cast<std::size_t>(values[i]));
  }
  return made;
}

double GgufFields::read_number(std::string_view key) const {
  const double number = source_.require_number(full(key));
  const float* stored = std::get_if<float>(&source_.require(full(key)).any());
  return stored != nullptr && std::isfinite(*stored) ? meant(*stored) : number;
}

double GgufFields::number(std::string_view key, double high, double fallback) const {
  if (!has(key)) return fallback;
  const double number = read_number(key);
  if (!(number >= 0 && number <= high)) fail_at(key, fmt::format("must be from 0 to {}, not {}", high, number));
  return number;
}

double GgufFields::multiplier(std::string_view key, double fallback) const {
  return has(key) && read_number(key) == 0 ? fallback : Fields::multiplier(key, fallback);
}

bool GgufFields::read_flag(std::string_view key) const {
  const std::optional<bool> flag = source_.require(full(key)).boolean();
  if (!flag) fail_at(key, "must be a bool");
  return *flag;
}

std::optional<std::vector<bool>> GgufFields::flags(std::string_view key, std::size_t blocks) const {
  const GgufValue* value = source_.find(full(key));
  if (value == nullptr || value->array() == nullptr) return std::nullopt;
  const GgufArray& array = source_.require_array(full(key), GgufType::boolean);
  if (array.size() != blocks) fail_at(key, fmt::format("has {} entries for {} blocks", array.size(), blocks));
  std::vector<bool> flags;
  for (const std::byte flag : array.bytes()) flags.push_back(flag != std::byte{0});
  return flags;
}

}  // namespace imago::models
