#pragma once

// A number that tells one sequence of bytes from another. No defence against someone who wants two to be equal.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace imago::lm {

/// FNV-1a with 64 bits over words of 8 bytes, each turned so that high bits reach low ones.
class Fingerprint {
 public:
  void add(std::uint64_t word) noexcept {
    value_ = (value_ ^ word) * 0x100000001b3;
    value_ ^= value_ >> 32;
  }
  void add(std::span<const std::byte> bytes) noexcept {
    std::size_t at = 0;
    for (; bytes.size() - at >= sizeof(std::uint64_t); at += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes.data() + at, sizeof word);
      add(word);
    }
    std::uint64_t rest = 0;
    if (at < bytes.size()) std::memcpy(&rest, bytes.data() + at, bytes.size() - at);
    add(rest);
    add(std::uint64_t{bytes.size()});
  }
  void add(std::string_view text) noexcept { add(std::as_bytes(std::span(text))); }

  std::uint64_t value() const noexcept { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325;
};

}  // namespace imago::lm
