#pragma once

// The fields of an object of config.json, each read with its range. Every complaint names file, field and what is
// allowed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "files/hugging_face.h"

namespace imago::models {

class ConfigFields {
 public:
  /// Throws FormatError unless `object` is one. `path` is put before names: "rope_parameters.".
  ConfigFields(files::JsonValue object, std::string_view file, std::string path = {});

  /// In the file, if only as `null`.
  bool states(std::string_view key) const;
  /// In the file, and not `null`.
  bool has(std::string_view key) const { return object_.find(key).has_value(); }
  std::optional<files::JsonValue> find(std::string_view key) const { return object_.find(key); }
  std::optional<ConfigFields> object(std::string_view key) const;

  /// Whole numbers from 1 to `high`. Throws FormatError if it is absent and there is no fallback.
  std::size_t size(std::string_view key, std::int64_t high) const;
  std::size_t size(std::string_view key, std::int64_t high, std::size_t fallback) const;
  /// Numbers above 0 up to `high`.
  double positive(std::string_view key, double high) const;
  double positive(std::string_view key, double high, double fallback) const;
  /// Numbers that are not 0, from 1 / kMaxFactor to kMaxFactor without their sign.
  double multiplier(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key) const;
  std::string text(std::string_view key, std::string_view fallback) const;

  /// The first of two names that is there; the first if none is. Old and new spellings.
  std::string_view either(std::string_view key, std::string_view other) const {
    return has(key) || !has(other) ? key : other;
  }

  /// Throw at the object, with `problem` as it is.
  [[noreturn]] void fail(std::string_view problem) const { object_.fail(problem); }
  /// Throws UnsupportedError: "FILE: PROBLEM".
  [[noreturn]] void refuse(std::string_view problem) const;

 private:
  std::string full(std::string_view key) const { return path_ + std::string(key); }
  files::JsonValue require(std::string_view key) const;
  double positive(files::JsonValue value, std::string_view key, double high) const;

  files::JsonValue object_;
  std::string file_, path_;
};

}  // namespace imago::models
