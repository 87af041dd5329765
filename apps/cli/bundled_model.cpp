#include "bundled_model.h"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>

#include "imago/error.h"
#include "output.h"

namespace imago::cli {

namespace fs = std::filesystem;

namespace {

constexpr const char* kFile = "imago-20m.gguf";

/// The folder of this program, wherever it was moved to; empty if the system does not say.
fs::path program_folder() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path() : program.parent_path();
}

}  // namespace

std::vector<fs::path> bundled_places(const fs::path& binaries) {
  if (binaries.empty()) return {};
  const fs::path above = binaries.parent_path();
  return {above / "share" / "imago" / kFile,        // PREFIX/bin/imago
          above.parent_path() / "models" / kFile};  // SOURCE/build/bin/imago
}

std::string bundled_model() {
  for (const fs::path& place : bundled_places(program_folder())) {
    std::error_code ignored;
    if (fs::is_regular_file(place, ignored)) return place.string();
  }
  return {};
}

std::string model_path(const std::string& given) {
  if (!given.empty()) return given;
  if (const char* named = std::getenv("IMAGO_MODEL"); named != nullptr && *named != '\0') return named;
  std::string bundled = bundled_model();
  if (!bundled.empty()) return bundled;
  std::vector<std::string> places;
  for (const fs::path& place : bundled_places(program_folder())) places.push_back(place.string());
  throw UsageError(fmt::format(
      "no MODEL given; name a GGUF file or a Hugging Face folder, or set IMAGO_MODEL to one (the model that comes with "
      "imago is not here: there is no {})",
      join(places, " and no ")));
}

}  // namespace imago::cli
