#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace imago::testing {

inline std::vector<float> copy(std::span<const float> values) { return {values.begin(), values.end()}; }
inline std::vector<std::byte> copy(std::span<const std::byte> values) { return {values.begin(), values.end()}; }

inline std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

}  // namespace imago::testing
