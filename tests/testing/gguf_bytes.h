#pragma once

// GGUF files put together by hand, field by field, so that each field can be wrong.

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace imago::testing {

template <class T>
std::string raw(T number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

inline std::string gguf_string(std::string_view text) { return raw(std::uint64_t{text.size()}).append(text); }

/// A key and its value: the number of the type, and the bytes.
inline std::string gguf_pair(std::string_view key, std::uint32_t type, std::string_view value) {
  return gguf_string(key) + raw(type) + std::string(value);
}

inline std::string gguf_array(std::uint32_t type, std::uint64_t count, std::string_view elements) {
  return raw(type) + raw(count) + std::string(elements);
}

struct GgufTensorBytes {
  std::string name = "t";
  std::vector<std::uint64_t> extents = {4};  // innermost first, as in the file
  std::uint32_t type = 0;
  std::uint64_t offset = 0;
  std::optional<std::uint32_t> rank = std::nullopt;  // else the number of extents

  std::string bytes() const {
    std::string out = gguf_string(name) + raw(rank.value_or(static_cast<std::uint32_t>(extents.size())));
    for (const std::uint64_t extent : extents) out += raw(extent);
    return out + raw(type) + raw(offset);
  }
};

/// Valid as it stands: one F32 tensor of four zeros.
struct GgufBytes {
  std::string magic = "GGUF";
  std::uint32_t version = 3;
  std::optional<std::uint64_t> tensor_count = std::nullopt;  // else the true numbers
  std::optional<std::uint64_t> pair_count = std::nullopt;
  std::vector<std::string> pairs = {};
  std::vector<GgufTensorBytes> tensors = {{}};
  std::size_t data_bytes = 16;
  std::size_t alignment = 32;

  std::string bytes() const {
    std::string out =
        magic + raw(version) + raw(tensor_count.value_or(tensors.size())) + raw(pair_count.value_or(pairs.size()));
    for (const std::string& pair : pairs) out += pair;
    for (const GgufTensorBytes& tensor : tensors) out += tensor.bytes();
    out.resize((out.size() + alignment - 1) / alignment * alignment, '\0');
    return out.append(data_bytes, '\0');
  }
};

}  // namespace imago::testing
