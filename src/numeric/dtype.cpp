
#include <fmt/format.h>

#include <string>

#include "base/checked.h"
#include "base/names.h"
#include "imago/error.h"
#include "imago/format.h"

namespace imago {

namespace {

/// Those that users may name.
std::string known_names(bool with_blocks) {
  std::string names;
  for (const Format format : kFormats) {
    if (!format.is_target() || (format.is_block() && !with_blocks)) continue;
    names += fmt::format("{}{}", names.empty() ? "" : " ", format.name());
  }
  return names;
}

}  // namespace

std::optional<DType> find_dtype(std::string_view text) noexcept {
  for (const DTypeInfo& info : kDTypes) {
    if (same_but_for_case(text, info.name)) return info.id;
    for (const std::string_view alias : info.aliases) {
      if (!alias.empty() && same_but_for_case(text, alias)) return info.id;
    }
  }
  return std::nullopt;
}

DType parse_dtype(std::string_view text) {
  if (const auto found = find_dtype(text)) return *found;
  throw UsageError(fmt::format("unknown type '{}'; known: {}", text, known_names(false)));
}

std::optional<Format> find_format(std::string_view text) noexcept {
  if (const auto dtype = find_dtype(text)) return *dtype;
  for (const BlockFormatInfo& info : kBlockFormats) {
    if (info.in_gguf() && same_but_for_case(text, info.name)) return info.id;
  }
  return std::nullopt;
}

Format parse_format(std::string_view text) {
  if (const auto found = find_format(text)) return *found;
  throw UsageError(fmt::format("unknown type '{}'; known: {}", text, known_names(true)));
}

std::size_t packed_bytes(Format format, std::size_t count) {
  const std::size_t block = static_cast<std::size_t>(format.block_values());
  if (count % block != 0) {
    throw ShapeError(
        fmt::format("{} weights are not a multiple of the {} that a block of {} holds", count, block, format.name()));
  }
  const std::size_t values = static_cast<std::size_t>(format.unit_values());
  const std::size_t bytes = static_cast<std::size_t>(format.unit_bytes());
  const std::size_t whole = checked_mul<std::size_t>(count / values, bytes, "a packed tensor");
  return checked_add<std::size_t>(whole, (count % values * bytes + values - 1) / values, "a packed tensor");
}

}  // namespace imago
