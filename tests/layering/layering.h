#pragma once

// The architecture as a test: which file may include what, and how long a file may grow.

#include <cstddef>
#include <filesystem>
#include <istream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace imago::layering {

/// Module -> modules it may include, itself and everything below it.
using Modules = std::map<std::string, std::set<std::string>>;

struct Architecture {
  Modules modules;
  std::map<std::string, std::string> owners;  ///< public header -> the module that implements it
};

/// Reads lines "module dependency dependency … : header header …" and closes them over dependencies of dependencies.
/// Throws std::runtime_error for an unknown dependency, a cycle, and a header with two owners.
Architecture read_architecture(std::istream& lines);

/// Violations, or notes for the reader, one line each: "src/base/cpu.cpp:7: …".
using Findings = std::vector<std::string>;

/// Checks each #include of the sources under include/, src/ and apps/ of `root`:
///   include/imago   the standard library and public headers of modules that the owner of the header may see;
///   src/MODULE      the modules it may see and the public headers they own; its tests, and *_fixture.h and
///                   *_samples.h, also every public header (they link the whole library) and testing/ and networks/
///                   of tests/;
///   apps/PROGRAM    include/imago, its own folder, CLI11, fmt and nlohmann.
/// System and standard headers are open to src and apps.
Findings check_includes(const std::filesystem::path& root, const Architecture& architecture);

struct Sizes {
  Findings too_long;   ///< over kLongestFile: an error
  Findings long_ones;  ///< over kLongFile: worth a question
};
inline constexpr std::size_t kLongestFile = 800;
inline constexpr std::size_t kLongFile = 500;

/// Counts the lines of every source of the project.
Sizes check_sizes(const std::filesystem::path& root);

}  // namespace imago::layering
