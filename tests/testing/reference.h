#pragma once

// Reference data that tests compare with. tests/data holds what a clone needs; the rest lies outside of the repository,
// and tests that need it are skipped where it is absent: `GTEST_SKIP() << missing_reference("lm")`. tests/summary.sh
// counts those by this message.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace imago::testing {

/// The folder of reference data outside of the repository: ../shared/reference, or what IMAGO_REFERENCE names. With
/// IMAGO_REFERENCE=none it is a folder that does not exist, as in a plain clone.
inline std::filesystem::path reference_folder() {
  const char* const given = std::getenv("IMAGO_REFERENCE");
  if (given == nullptr) return std::filesystem::path(IMAGO_SHARED) / "reference";
  return std::string_view(given) == "none" ? std::filesystem::path(IMAGO_TEST_DATA) / "none" : given;
}

/// A file or folder, such as "lm/tokenizer.json", from tests/data or else from reference_folder().
inline std::optional<std::string> find_reference(const std::string& name) {
  namespace fs = std::filesystem;
  for (const fs::path& root : {fs::path(IMAGO_TEST_DATA), reference_folder()}) {
    if (fs::exists(root / name)) return fs::canonical(root / name).string();
  }
  return std::nullopt;
}

inline std::string missing_reference(const std::string& name) { return "no reference data: " + name; }

}  // namespace imago::testing
