#pragma once

// A reader of reference data for tests: small, trusting, and independent of the library's own reader.

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace imago::testing {

class SafetensorsFile {
 public:
  /// `name` is relative to tests/data, or an absolute path.
  explicit SafetensorsFile(const std::string& name) {
    const std::filesystem::path path = std::filesystem::path(IMAGO_TEST_DATA) / name;
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path.string());
    bytes_.assign(std::istreambuf_iterator<char>(file), {});
    std::uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes_.data(), sizeof header_bytes);
    data_ = 8 + header_bytes;
    header_ = nlohmann::json::parse(bytes_.begin() + 8, bytes_.begin() + static_cast<std::ptrdiff_t>(data_));
  }

  std::vector<std::size_t> shape(const std::string& tensor) const { return header_.at(tensor).at("shape"); }

  bool has(const std::string& tensor) const { return header_.contains(tensor); }

  /// The JSON text under `key` of __metadata__, parsed.
  nlohmann::json metadata(const std::string& key) const {
    return nlohmann::json::parse(header_.at("__metadata__").at(key).get<std::string>());
  }

  /// The tensor's elements as stored in the file. T must have the size of the stored type.
  template <class T>
  std::vector<T> values(const std::string& tensor) const {
    const auto offsets = header_.at(tensor).at("data_offsets").get<std::vector<std::size_t>>();
    std::vector<T> out((offsets.at(1) - offsets.at(0)) / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + data_ + offsets.at(0), offsets.at(1) - offsets.at(0));
    return out;
  }

 private:
  std::vector<char> bytes_;
  std::size_t data_ = 0;
  nlohmann::json header_;
};

}  // namespace imago::testing
