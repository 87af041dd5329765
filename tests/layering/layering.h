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

/// Reads lines "module dependency dependency …" and closes them over dependencies of dependencies.
/// Throws std::runtime_error for a dependency that is no module, and for a cycle.
Modules read_modules(std::istream& lines);

/// Something that must not be, or (in a list of notes) something to think about: "src/base/cpu.cpp:7: …".
using Findings = std::vector<std::string>;

/// Checks each #include of the sources under include/, src/ and apps/ of `root`:
///   include/imago   its own headers and the standard library;
///   src/MODULE      include/imago and the modules it may see; its tests, and *_fixture.h and *_samples.h,
///                   also testing/ and networks/ of tests/;
///   apps/PROGRAM    include/imago, its own folder, CLI11, fmt and nlohmann.
/// System and standard headers are open to src and apps.
Findings check_includes(const std::filesystem::path& root, const Modules& modules);

struct Sizes {
  Findings too_long;   ///< over kLongestFile: an error
  Findings long_ones;  ///< over kLongFile: worth a question
};
inline constexpr std::size_t kLongestFile = 800;
inline constexpr std::size_t kLongFile = 500;

/// Counts the lines of every source of the project.
Sizes check_sizes(const std::filesystem::path& root);

}  // namespace imago::layering
