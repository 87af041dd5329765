#pragma once

// Base64 of RFC 4648 §4 with padding, as checkpoints hold their weights. Both ways run on all threads.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "files/json.h"

namespace imago::files {

/// Characters for `bytes` bytes. REQUIRES: bytes < 2^63.
constexpr std::size_t base64_length(std::size_t bytes) noexcept { return (bytes + 2) / 3 * 4; }

/// REQUIRES: text.size() == base64_length(bytes.size()).
void encode_base64(std::span<const std::byte> bytes, std::span<char> text);

struct Base64Result {
  std::vector<std::byte> bytes;
  std::size_t wrong = std::string_view::npos;  ///< place of the first wrong character; npos: all is well
};

/// Strict: the standard alphabet, all padding and only at the end, unused bits 0. CR and LF are skipped anywhere.
Base64Result decode_base64(std::string_view text);

/// Decodes a string value; throws FormatError at the wrong character. `what` names the field.
std::vector<std::byte> decode_base64(const JsonValue& value, std::string_view what);

/// Bytes that decode_base64 would give, without making them; the same complaints.
std::size_t measure_base64(const JsonValue& value, std::string_view what);

}  // namespace imago::files
