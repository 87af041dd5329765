#include "layering.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace imago::layering {

namespace fs = std::filesystem;

namespace {

struct Include {
  std::string target;
  bool quoted;
};

/// The #include of a line, if it has one.
std::optional<Include> parse_include(std::string_view line) {
  const auto skip_spaces = [&] { line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size())); };
  skip_spaces();
  if (!line.starts_with('#')) return std::nullopt;
  line.remove_prefix(1);
  skip_spaces();
  constexpr std::string_view kWord = "include";
  if (!line.starts_with(kWord)) return std::nullopt;
  line.remove_prefix(kWord.size());
  skip_spaces();
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return std::nullopt;
  const std::size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  if (end == std::string_view::npos) return std::nullopt;
  return Include{std::string(line.substr(1, end - 1)), line[0] == '"'};
}

/// "base" of "base/cpu.h"; empty for a name without a folder.
std::string first_folder(std::string_view path) {
  const std::size_t slash = path.find('/');
  return slash == std::string_view::npos ? "" : std::string(path.substr(0, slash));
}

bool is_standard(const Include& include) {
  return !include.quoted && include.target.find_first_of("./") == std::string::npos;
}

bool is_public(const Include& include) { return first_folder(include.target) == "imago"; }

/// Tests, and what several tests of a module share.
bool is_for_tests(std::string_view file) {
  return file.ends_with("_test.cpp") || file.ends_with("_fixture.h") || file.ends_with("_samples.h");
}

/// Sources under the named folders of `root`, in a stable order.
std::vector<fs::path> sources(const fs::path& root, std::initializer_list<const char*> folders) {
  std::vector<fs::path> found;
  for (const char* folder : folders) {
    if (!fs::is_directory(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (entry.is_regular_file() &&
          (extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh")) {
        found.push_back(entry.path());
      }
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// Why `module` may not include the public header `target`; empty if it may.
std::string public_objection(const std::string& module, const std::string& target, const Architecture& architecture) {
  const auto owner = architecture.owners.find(fs::path(target).filename());
  if (owner == architecture.owners.end()) return "no module owns this public header";
  const auto allowed = architecture.modules.find(module);
  if (allowed != architecture.modules.end() && allowed->second.contains(owner->second)) return {};
  return fmt::format("module '{}' may not see '{}', which owns the header", module, owner->second);
}

/// The same for a file of a program: what is not a public header lies in its folder or in that of the server.
std::string app_objection(const fs::path& root, const std::string& file, const Include& include) {
  if (is_public(include)) return {};
  const std::string library = first_folder(include.target);
  if (is_for_tests(file) && (!include.quoted || library == "testing")) return {};
  if (include.quoted) {
    const bool found = fs::exists(fs::path(root / file).parent_path() / include.target) ||
                       (library == "server" && fs::exists(root / "apps" / include.target));
    return found ? "" : "programs see the public headers, their own folder and the server's";
  }
  const auto is_one_of = [&](std::initializer_list<std::string_view> libraries) {
    return std::ranges::find(libraries, library) != libraries.end();
  };
  if (library.empty() || is_one_of({"sys", "fmt", "nlohmann"})) return {};
  if (file.starts_with("apps/server/")) {
    return is_one_of({"openssl", "arpa", "netinet"}) ? "" : "the server sees fmt, nlohmann, httplib and openssl only";
  }
  return library == "CLI" ? "" : "programs see CLI11, fmt and nlohmann only";
}

/// Why `file` (relative to the root, '/' between folders) may not include `include`; empty if it may.
std::string objection(const fs::path& root, const std::string& file, const Include& include,
                      const Architecture& architecture) {
  const Modules& modules = architecture.modules;
  const std::string area = first_folder(file);

  if (area == "include") {
    if (is_standard(include)) return {};
    if (!is_public(include)) return "public headers include only each other and the standard library";
    const auto owner = architecture.owners.find(fs::path(file).filename());
    if (owner == architecture.owners.end()) return "no module owns the header that includes it";
    return public_objection(owner->second, include.target, architecture);
  }

  if (area == "apps") return app_objection(root, file, include);

  if (!include.quoted) return {};
  const std::string module = first_folder(std::string_view(file).substr(area.size() + 1));
  const auto allowed = modules.find(module);
  if (allowed == modules.end()) return fmt::format("folder '{}' is not a module", module);
  if (is_public(include)) {
    return is_for_tests(file) ? std::string() : public_objection(module, include.target, architecture);
  }
  const std::string wanted = first_folder(include.target);
  // Folders of tests/ whose headers are for tests of modules too.
  if ((wanted == "testing" || wanted == "networks") && is_for_tests(file)) return {};
  if (!modules.contains(wanted)) return "no module holds that; name headers by their path from src/";
  if (allowed->second.contains(wanted)) return {};
  return fmt::format("module '{}' may not see '{}'", module, wanted);
}

}  // namespace

Architecture read_architecture(std::istream& lines) {
  Modules direct;
  std::map<std::string, std::string> owners;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string module;
    if (!(words >> module)) continue;
    std::set<std::string>& depends = direct[module];
    std::string word;
    while (words >> word && word != ":") depends.insert(word);
    while (words >> word) {
      const auto [owner, added] = owners.emplace(word, module);
      if (!added) throw std::runtime_error(fmt::format("{} and {} both own {}", owner->second, module, word));
    }
  }
  for (const auto& [module, depends] : direct) {
    for (const std::string& depend : depends) {
      if (!direct.contains(depend)) throw std::runtime_error(fmt::format("{} depends on unknown {}", module, depend));
    }
  }

  Modules closed = direct;
  for (bool grew = true; grew;) {
    grew = false;
    for (auto& [module, depends] : closed) {
      const std::set<std::string> before = depends;
      for (const std::string& depend : before) depends.insert(closed[depend].begin(), closed[depend].end());
      grew = grew || depends.size() != before.size();
    }
  }
  for (auto& [module, depends] : closed) {
    if (!depends.insert(module).second) throw std::runtime_error(fmt::format("{} depends on itself", module));
  }
  return {std::move(closed), std::move(owners)};
}

Findings check_includes(const fs::path& root, const Architecture& architecture) {
  Findings findings;
  for (const fs::path& path : sources(root, {"include", "src", "apps"})) {
    const std::string file = path.lexically_relative(root).generic_string();
    std::ifstream stream(path);
    std::size_t number = 0;
    for (std::string line; std::getline(stream, line);) {
      ++number;
      const std::optional<Include> include = parse_include(line);
      if (!include) continue;
      const std::string why = objection(root, file, *include, architecture);
      if (!why.empty()) findings.push_back(fmt::format("{}:{}: {}: {}", file, number, include->target, why));
    }
  }
  return findings;
}

Sizes check_sizes(const fs::path& root) {
  Sizes sizes;
  for (const fs::path& path : sources(root, {"include", "src", "apps", "tests", "bench", "fuzz"})) {
    std::ifstream stream(path);
    const auto lines = static_cast<std::size_t>(std::count(std::istreambuf_iterator<char>(stream), {}, '\n'));
    if (lines <= kLongFile) continue;
    Findings& findings = lines > kLongestFile ? sizes.too_long : sizes.long_ones;
    findings.push_back(fmt::format("{}: {} lines", path.lexically_relative(root).generic_string(), lines));
  }
  return sizes;
}

}  // namespace imago::layering
