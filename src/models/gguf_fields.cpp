#include "models/gguf_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "imago/error.h"
#include "models/traits_reading.h"

namespace imago::models {

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

double read_number(const GgufFile& file, const std::string& key) {
  const double number = file.require_number(key);
  const float* stored = std::get_if<float>(&file.require(key).any());
  return stored != nullptr && std::isfinite(*stored) ? meant(*stored) : number;
}

}  // namespace

void GgufFields::fail(std::string_view problem) const { throw FormatError(file_.path(), 0, problem); }
void GgufFields::refuse(std::string_view problem) const {
  throw UnsupportedError(fmt::format("{}: {}", file_.path(), problem));
}

std::size_t GgufFields::size(std::string_view key, std::int64_t high) const {
  const GgufValue* value = find(key);
  const GgufArray* array = value == nullptr ? nullptr : value->array();
  if (array == nullptr) return static_cast<std::size_t>(file_.require_integer(full(key), 1, high));
  const bool numbers = array->arrays().empty() && array->strings().empty() && array->type() != GgufType::f32 &&
                       array->type() != GgufType::f64 && array->type() != GgufType::boolean;
  if (!numbers || array->size() == 0) fail(fmt::format("'{}' must be a whole number", full(key)));
  const std::vector<std::int64_t> values = array->integers();
  if (std::any_of(values.begin(), values.end(), [&](std::int64_t other) { return other != values[0]; })) {
    refuse(fmt::format("'{}' differs between blocks, which is not supported", full(key)));
  }
  if (values[0] < 1 || values[0] > high) {
    fail(fmt::format("'{}' must be from 1 to {}, not {}", full(key), high, values[0]));
  }
  return static_cast<std::size_t>(values[0]);
}
std::size_t GgufFields::size(std::string_view key, std::int64_t high, std::size_t fallback) const {
  return has(key) ? size(key, high) : fallback;
}
std::size_t GgufFields::count(std::string_view key, std::int64_t high, std::size_t fallback) const {
  return has(key) ? static_cast<std::size_t>(file_.require_integer(full(key), 0, high)) : fallback;
}

double GgufFields::number(std::string_view key, double high, double fallback) const {
  if (!has(key)) return fallback;
  const double number = read_number(file_, full(key));
  if (!(number >= 0 && number <= high)) {
    fail(fmt::format("'{}' must be from 0 to {}, not {}", full(key), high, number));
  }
  return number;
}
double GgufFields::positive(std::string_view key, double high) const {
  const double number = read_number(file_, full(key));
  if (!(number > 0 && number <= high)) {
    fail(fmt::format("'{}' must be above 0 and at most {}, not {}", full(key), high, number));
  }
  if (number < kMinPositive) fail(fmt::format("'{}' is {}, too small to compute with", full(key), number));
  return number;
}
double GgufFields::positive(std::string_view key, double high, double fallback) const {
  return has(key) ? positive(key, high) : fallback;
}

double GgufFields::multiplier(std::string_view key, double fallback) const {
  if (!has(key)) return fallback;
  const double number = read_number(file_, full(key));
  // Zero is what converters write for a multiplier that the model does not have.
  if (number == 0) return fallback;
  if (!(std::abs(number) >= 1 / kMaxFactor && std::abs(number) <= kMaxFactor)) {
    fail(fmt::format("'{}' must be from {} to {}, with either sign, not {}", full(key), 1 / kMaxFactor, kMaxFactor,
                     number));
  }
  return number;
}

bool GgufFields::flag(std::string_view key, bool fallback) const {
  const GgufValue* value = find(key);
  if (value == nullptr) return fallback;
  const std::optional<bool> flag = value->boolean();
  if (!flag) fail(fmt::format("'{}' must be a bool", full(key)));
  return *flag;
}

std::string GgufFields::text(std::string_view key, std::string_view fallback) const {
  return std::string(has(key) ? file_.require_string(full(key)) : fallback);
}

std::optional<std::vector<bool>> GgufFields::flags(std::string_view key, std::size_t blocks) const {
  const GgufValue* value = find(key);
  if (value == nullptr || value->array() == nullptr) return std::nullopt;
  const GgufArray& array = file_.require_array(full(key), GgufType::boolean);
  if (array.size() != blocks) fail(fmt::format("'{}' has {} entries for {} blocks", full(key), array.size(), blocks));
  std::vector<bool> flags(blocks);
  for (std::size_t block = 0; block < blocks; ++block) flags[block] = array.bytes()[block] != std::byte{0};
  return flags;
}

}  // namespace imago::models
