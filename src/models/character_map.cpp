#include "models/character_map.h"

#include <fmt/format.h>

#include <cstring>

#include "imago/error.h"

namespace imago::models {

namespace {

constexpr std::uint32_t kValueBit = std::uint32_t{1} << 31;

std::uint32_t offset_of(std::uint32_t unit) noexcept { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
bool has_value(std::uint32_t unit) noexcept { return ((unit >> 8) & 1) != 0; }
std::uint32_t label_of(std::uint32_t unit) noexcept { return unit & (kValueBit | 0xff); }

}  // namespace

CharacterMap CharacterMap::parse(std::string_view bytes, std::string_view file, std::string_view field) {
  CharacterMap map;
  if (bytes.empty()) return map;
  std::uint32_t trie_bytes = 0;
  if (bytes.size() < sizeof trie_bytes) {
    throw FormatError(file, 0, fmt::format("{} has {} bytes: its size alone takes 4", field, bytes.size()));
  }
  std::memcpy(&trie_bytes, bytes.data(), sizeof trie_bytes);
  bytes.remove_prefix(sizeof trie_bytes);
  if (trie_bytes > bytes.size()) {
    throw FormatError(file, 0,
                      fmt::format("{} says that its trie has {} bytes, but only {} follow: it may be cut off", field,
                                  trie_bytes, bytes.size()));
  }
  if (trie_bytes == 0 || trie_bytes % sizeof(std::uint32_t) != 0) {
    throw FormatError(
        file, 0,
        fmt::format("{} says that its trie has {} bytes: it must be a multiple of 4 above 0", field, trie_bytes));
  }
  map.units_.resize(trie_bytes / sizeof(std::uint32_t));
  std::memcpy(map.units_.data(), bytes.data(), trie_bytes);
  map.replacements_ = bytes.substr(trie_bytes);
  if (!map.replacements_.empty() && map.replacements_.back() != '\0') {
    throw FormatError(file, 0, fmt::format("the last replacement of {} is not ended by a zero byte", field));
  }
  for (const std::uint32_t unit : map.units_) {
    // A value unit is reached through a unit that says so, but a map that holds none out of range needs no trust.
    if ((unit & kValueBit) != 0 && (unit & ~kValueBit) >= map.replacements_.size()) {
      throw FormatError(file, 0,
                        fmt::format("{} has a replacement at {}, behind the {} bytes of replacements", field,
                                    unit & ~kValueBit, map.replacements_.size()));
    }
  }
  return map;
}

std::optional<CharacterMap::Match> CharacterMap::longest(std::string_view text) const noexcept {
  if (units_.empty()) return std::nullopt;
  std::optional<Match> best;
  std::uint32_t at = offset_of(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) break;
    const bool leaf = has_value(units_[at]);
    at ^= offset_of(units_[at]);
    if (at >= units_.size()) break;
    if (!leaf) continue;
    const std::uint32_t start = units_[at] & ~kValueBit;
    if (start >= replacements_.size()) break;
    best = {i + 1, std::string_view(replacements_.c_str() + start)};
  }
  return best;
}

}  // namespace imago::models
