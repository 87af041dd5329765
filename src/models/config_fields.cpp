#include "models/config_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "imago/error.h"
#include "models/traits_reading.h"

namespace imago::models {

ConfigFields::ConfigFields(files::JsonValue object, std::string_view file, std::string path)
    : object_(object), file_(file), path_(std::move(path)) {
  object_.members(path_.empty() ? std::string_view("the config") : std::string_view(path_));
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
  return ConfigFields(*value, file_, full(key) + ".");
}

files::JsonValue ConfigFields::require(std::string_view key) const {
  const std::optional<files::JsonValue> value = object_.find(key);
  if (!value) object_.fail(fmt::format("'{}' is missing", full(key)));
  return *value;
}

std::size_t ConfigFields::size(std::string_view key, std::int64_t high) const {
  return static_cast<std::size_t>(require(key).integral(full(key), 1, high));
}
std::size_t ConfigFields::size(std::string_view key, std::int64_t high, std::size_t fallback) const {
  return has(key) ? size(key, high) : fallback;
}

double ConfigFields::positive(files::JsonValue value, std::string_view key, double high) const {
  const double number = value.number(full(key));
  if (!(number > 0 && number <= high)) {
    value.fail(fmt::format("{} must be above 0 and at most {}, not {}", full(key), high, number));
  }
  if (number < kMinPositive) value.fail(fmt::format("{} is {}, too small to compute with", full(key), number));
  return number;
}
double ConfigFields::positive(std::string_view key, double high) const { return positive(require(key), key, high); }
double ConfigFields::positive(std::string_view key, double high, double fallback) const {
  return has(key) ? positive(require(key), key, high) : fallback;
}

double ConfigFields::multiplier(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const files::JsonValue value = require(key);
  const double number = value.number(full(key));
  if (!(std::abs(number) >= 1 / kMaxFactor && std::abs(number) <= kMaxFactor)) {
    value.fail(fmt::format("{} must be from {} to {}, with either sign, not {}", full(key), 1 / kMaxFactor, kMaxFactor,
                           number));
  }
  return number;
}

bool ConfigFields::flag(std::string_view key, bool fallback) const {
  return has(key) ? require(key).boolean(full(key)) : fallback;
}
std::string ConfigFields::text(std::string_view key) const { return require(key).string(full(key)); }
std::string ConfigFields::text(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : std::string(fallback);
}

void ConfigFields::refuse(std::string_view problem) const {
  throw UnsupportedError(fmt::format("{}: {}", file_, problem));
}

}  // namespace imago::models
