#pragma once

// Which language model is meant where none is named.

#include <filesystem>
#include <string>
#include <vector>

namespace imago::cli {

/// `given`, else what IMAGO_MODEL names, else the model that comes with the program. Throws UsageError, naming the
/// places it looked at, if there is none.
std::string model_path(const std::string& given);

/// The model that comes with the program, empty if it did not: in the source tree for a program in its build folder,
/// in share/imago for an installed one. IMAGO_MODEL says nothing here.
std::string bundled_model();

/// Where a program in the folder `binaries` looks for it, first to last.
std::vector<std::filesystem::path> bundled_places(const std::filesystem::path& binaries);

}  // namespace imago::cli
