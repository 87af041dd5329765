#pragma once

// The fields that describe a model, each read with its range: members of config.json, or the metadata
// `ARCHITECTURE.KEY` of a GGUF file. Every complaint names file, field and what is allowed.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "files/hugging_face.h"
#include "imago/data.h"

namespace imago::models {

class Fields {
 public:
  virtual ~Fields() = default;

  /// In the file, and not `null`.
  virtual bool has(std::string_view key) const = 0;

  // These throw FormatError for a field that is out of range, of another kind, or absent without a fallback.
  /// Whole numbers from 1 to `high`.
  std::size_t size(std::string_view key, std::int64_t high) const { return read_size(key, high); }
  std::size_t size(std::string_view key, std::int64_t high, std::size_t fallback) const {
    return has(key) ? read_size(key, high) : fallback;
  }
  /// Numbers above 0 up to `high`.
  double positive(std::string_view key, double high) const;
  double positive(std::string_view key, double high, double fallback) const {
    return has(key) ? positive(key, high) : fallback;
  }
  /// Numbers that are not 0, from 1 / kMaxFactor to kMaxFactor without their sign.
  double multiplier(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const { return has(key) ? read_flag(key) : fallback; }
  std::string text(std::string_view key) const { return read_text(key); }
  std::string text(std::string_view key, std::string_view fallback) const {
    return has(key) ? read_text(key) : std::string(fallback);
  }

  /// Throws FormatError with `problem` as it is.
  [[noreturn]] virtual void fail(std::string_view problem) const = 0;
  /// Throws UnsupportedError: "FILE: PROBLEM".
  [[noreturn]] void refuse(std::string_view problem) const;

 protected:
  /// `prefix` is put before keys: "llama.", "rope_parameters.".
  Fields(std::string_view file, std::string_view prefix) : file_(file), prefix_(prefix) {}
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

 private:
  virtual std::size_t read_size(std::string_view key, std::int64_t high) const = 0;
  virtual double read_number(std::string_view key) const = 0;
  virtual bool read_flag(std::string_view key) const = 0;
  virtual std::string read_text(std::string_view key) const = 0;
  /// Throws FormatError at the field: its name, then `problem`.
  [[noreturn]] virtual void fail_at(std::string_view key, std::string_view problem) const = 0;

  std::string file_, prefix_;
};

class ConfigFields final : public Fields {
 public:
  /// Throws FormatError unless `object` is one.
  ConfigFields(files::JsonValue object, std::string_view file, std::string_view prefix = {});

  bool has(std::string_view key) const override { return object_.find(key).has_value(); }
  /// In the file, if only as `null`.
  bool states(std::string_view key) const;
  std::optional<files::JsonValue> find(std::string_view key) const { return object_.find(key); }
  std::optional<ConfigFields> object(std::string_view key) const;
  /// The first of two names that is there; the first if none is. Old and new spellings.
  std::string_view either(std::string_view key, std::string_view other) const {
    return has(key) || !has(other) ? key : other;
  }

  [[noreturn]] void fail(std::string_view problem) const override { object_.fail(problem); }

 private:
  files::JsonValue require(std::string_view key) const;
  std::size_t read_size(std::string_view key, std::int64_t high) const override;
  double read_number(std::string_view key) const override { return require(key).number(full(key)); }
  bool read_flag(std::string_view key) const override { return require(key).boolean(full(key)); }
  std::string read_text(std::string_view key) const override { return require(key).string(full(key)); }
  [[noreturn]] void fail_at(std::string_view key, std::string_view problem) const override;

  files::JsonValue object_;
  std::string path_;
};

class GgufFields final : public Fields {
 public:
  GgufFields(const GgufFile& file, std::string_view architecture)
      : Fields(file.path(), std::string(architecture) + "."), source_(file) {}

  using Fields::full;
  const GgufFile& file() const noexcept { return source_; }
  bool has(std::string_view key) const override { return source_.find(full(key)) != nullptr; }
  /// Whole numbers from 0.
  std::size_t count(std::string_view key, std::int64_t high, std::size_t fallback) const;
  /// Whole numbers from 1, one for each block: an array, or one number for all.
  std::vector<std::size_t> sizes(std::string_view key, std::int64_t high, std::size_t blocks) const;
  /// Numbers from 0.
  double number(std::string_view key, double high, double fallback) const;
  /// As that of all fields, but 0 is absent: converters write it for a multiplier that the model does not have.
  double multiplier(std::string_view key, double fallback) const;
  /// Whole numbers from 0, one for each block: of an array, or one for all.
  std::vector<std::size_t> counts(std::string_view key, std::int64_t high, std::size_t blocks) const;
  /// An array of bools, one for each block; none if the key is absent or not an array.
  std::optional<std::vector<bool>> flags(std::string_view key, std::size_t blocks) const;

  [[noreturn]] void fail(std::string_view problem) const override;

 private:
  /// Also of an array of equal numbers: some files state sizes for each block. Throws UnsupportedError if blocks
  /// differ.
  std::size_t read_size(std::string_view key, std::int64_t high) const override;
  /// The length of an array. REQUIRES: the key has one.
  std::vector<std::int64_t> integers(std::string_view key, std::int64_t high) const;
  double read_number(std::string_view key) const override;
  bool read_flag(std::string_view key) const override;
  std::string read_text(std::string_view key) const override { return std::string(source_.require_string(full(key))); }
  [[noreturn]] void fail_at(std::string_view key, std::string_view problem) const override;

  const GgufFile& source_;
};

}  // namespace imago::models
