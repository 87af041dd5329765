#pragma once

// The metadata of a GGUF model, `ARCHITECTURE.KEY`, each read with its range.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imago/data.h"

namespace imago::models {

class GgufFields {
 public:
  GgufFields(const GgufFile& file, std::string_view architecture) : file_(file), prefix_(architecture) {
    prefix_ += '.';
  }

  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  const GgufValue* find(std::string_view key) const { return file_.find(full(key)); }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  const GgufFile& file() const noexcept { return file_; }

  /// Whole numbers from 1 to `high`, or an array of them that are all the same: some files state sizes for each block.
  /// Throws FormatError if it is absent and there is no fallback, UnsupportedError if blocks differ.
  std::size_t size(std::string_view key, std::int64_t high) const;
  std::size_t size(std::string_view key, std::int64_t high, std::size_t fallback) const;
  /// From 0.
  std::size_t count(std::string_view key, std::int64_t high, std::size_t fallback) const;
  /// Numbers above 0 up to `high`.
  double positive(std::string_view key, double high) const;
  double positive(std::string_view key, double high, double fallback) const;
  /// From 0.
  double number(std::string_view key, double high, double fallback) const;
  /// Numbers that are not 0, from 1 / kMaxFactor to kMaxFactor without their sign.
  double multiplier(std::string_view key, double fallback) const;
  bool flag(std::string_view key, bool fallback) const;
  std::string text(std::string_view key, std::string_view fallback) const;
  /// An array of bools, one for each block; none if the key is absent or no array.
  std::optional<std::vector<bool>> flags(std::string_view key, std::size_t blocks) const;

  [[noreturn]] void fail(std::string_view problem) const;
  [[noreturn]] void refuse(std::string_view problem) const;

 private:
  const GgufFile& file_;
  std::string prefix_;
};

}  // namespace imago::models
