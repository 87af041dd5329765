#include "files.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "command.h"

namespace imago::cli {

void rethrow_for(const std::string& file, const Error& error) {
  if (error.kind() == ErrorKind::io || error.kind() == ErrorKind::format) throw;  // these name a file
  const ErrorKind kind = error.kind() == ErrorKind::usage ? ErrorKind::shape : error.kind();
  const std::string what = error.what();
  throw Error(kind, what.starts_with(file) ? what : fmt::format("{}: {}", file, what));
}

Network load_runnable(const std::string& path, const LoadOptions& options) {
  Network network = load_network(path, options);
  blame(path, [&] {
    network.check();
    for (const auto& [place, layer] : named_layers(network)) {
      const bool runs = !layer->config.is_disabled && !layer->config.is_remote_link;
      if (!runs || layer->weights || weight_shape(layer->config).count() == 0) continue;
      throw UnsupportedError(
          fmt::format("{} ({}) has no weights; give it some with 'imago train {} --data FILE -o trained.json'", place,
                      name(layer->config.type), path));
    }
  });
  return network;
}

std::string read_text(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw IoError(path, "is a folder, not a file");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw IoError(path, fmt::format("cannot open: {}", std::generic_category().message(errno)));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (file.bad()) throw IoError(path, "cannot read all of it");
  return text;
}

void check_folder(const std::string& path) {
  const std::filesystem::path target(path);
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : std::filesystem::path(".");
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw IoError(path, fmt::format("there is no folder {}; create it first", folder.string()));
  }
}

void check_network_output(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension();
  const auto known = {".json", ".entity", ".safetensors", ".gguf"};
  if (std::ranges::find(known, extension) == known.end()) {
    throw UsageError(fmt::format("{}: a network is saved as .json, .entity, .safetensors or .gguf", path));
  }
  check_folder(path);
}

namespace fs = std::filesystem;

namespace {

constexpr const char* kFile = "imago-20m.gguf";

/// Where to look for the bundled model, first to last; empty if the system does not say where this program is.
std::vector<fs::path> bundled_places() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path above = program.parent_path().parent_path();
  return {above / "share" / "imago" / kFile,        // PREFIX/bin/imago
          above.parent_path() / "models" / kFile};  // SOURCE/build/bin/imago
}

}  // namespace

std::string bundled_model() {
  for (const fs::path& place : bundled_places()) {
    std::error_code ignored;
    if (fs::is_regular_file(place, ignored)) return place.string();
  }
  return {};
}

std::string default_model() {
  const char* const named = std::getenv("IMAGO_MODEL");
  return named != nullptr && *named != '\0' ? named : bundled_model();
}

std::string model_path(const std::string& given) {
  if (!given.empty()) return given;
  std::string path = default_model();
  if (!path.empty()) return path;
  std::vector<std::string> places;
  for (const fs::path& place : bundled_places()) places.push_back(place.string());
  throw UsageError(
      fmt::format("no MODEL given; name a GGUF file or a Hugging Face folder, or set IMAGO_MODEL (the bundled model is "
                  "missing: there is no {})",
                  join(places, " and no ")));
}

}  // namespace imago::cli
