#pragma once

// Reads numbers from untrusted bytes. Every read is checked against the bytes left, so that no offset can leave the
// file.

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "imago/error.h"

namespace imago::files {

class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, std::string_view path) : bytes_(bytes), path_(path) {}

  std::size_t position() const noexcept { return position_; }
  std::size_t left() const noexcept { return bytes_.size() - position_; }
  std::string_view path() const noexcept { return path_; }

  /// A little-endian number. `what` stands in the error if the file ends in it.
  template <class T>
  requires std::is_arithmetic_v<T> T read(std::string_view what) {
    T value{};
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }

  /// The next `count` bytes.
  std::span<const std::byte> take(std::uint64_t count, std::string_view what) {
    if (count > left()) {
      fail(fmt::format("{} needs {} bytes, but the file ends after {}: it may be cut off", what, count, left()));
    }
    const std::span<const std::byte> taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  /// A u64 length and as many bytes.
  std::string_view read_string(std::string_view what) {
    const auto length = read<std::uint64_t>(what);
    const std::span<const std::byte> text = take(length, what);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  [[noreturn]] void fail(const std::string& problem) const { throw FormatError(path_, position_, problem); }

 private:
  std::span<const std::byte> bytes_;
  std::string_view path_;
  std::size_t position_ = 0;
};

}  // namespace imago::files
