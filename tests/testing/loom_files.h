#pragma once

// Reference files of the original engine: a small set in the repository, all of them outside.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "testing/reference.h"

namespace imago::testing {

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::filesystem::path loom_folder() { return std::filesystem::path(IMAGO_TEST_DATA) / "loom"; }
/// The path of a file in it.
inline std::string loom(const std::string& name) { return (loom_folder() / name).string(); }
/// May not exist.
inline std::filesystem::path shared_loom_folder() { return reference_folder() / "loom"; }

/// Checkpoints (`.json` but not `.ref.json`) of a folder, sorted.
inline std::vector<std::filesystem::path> loom_checkpoints(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.ends_with(".json") && !name.ends_with(".ref.json")) found.push_back(entry.path());
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace imago::testing
