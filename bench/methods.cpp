// What a calibration is worth: reference/lm morphed plainly, with importance, with error compensation and with scaled
// columns, calibrated on one text and judged on another, as the Markdown table of docs/precision-methods.md.
// imago_bench_methods [TYPE ...]

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "imago/lm.h"
#include "imago/models.h"
#include "imago/precision.h"
#include "testing/temp_dir.h"

namespace imago::bench {
namespace {

namespace fs = std::filesystem;

struct Method {
  std::string_view name;
  bool calibrated;
  Rounding rounding;
};
constexpr Method kMethods[] = {{"plain", false, Rounding::nearest},
                               {"importance", true, Rounding::nearest},
                               {"gptq", true, Rounding::compensated},
                               {"awq", true, Rounding::scaled}};

constexpr std::string_view kTypes[] = {"q2_k", "q3_k", "q4_0", "q4_1",    "q4_k",     "iq4_nl", "q5_0",
                                       "q5_k", "q6_k", "q8_0", "int4:32", "int4:128", "int2:32"};

/// "q4_k", or "int4:32" with scales for groups of 32.
ConvertOptions options_of(std::string_view type) {
  ConvertOptions options;
  const std::size_t colon = type.find(':');
  options.type = parse_format(type.substr(0, colon));
  if (colon != std::string_view::npos) {
    options.granularity = Granularity::group;
    options.group = std::stoi(std::string(type.substr(colon + 1)));
  }
  options.pure = true;
  return options;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void show(std::size_t done, std::size_t total) {
  fmt::print(stderr, "\r{} of {} windows{}", done, total, done == total ? "\n" : "");
}

void bench(const fs::path& folder, const fs::path& texts, const std::vector<std::string_view>& types) {
  const testing::TempDir temporary;
  const std::string calibration = temporary.path() / "calibration.gguf";
  const auto start = std::chrono::steady_clock::now();
  calibrate_model(folder.string(), read(texts / "calibration.txt"), "calibration.txt", calibration,
                  {.products = true, .progress = show});
  const auto seconds = [](auto since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
  };
  fmt::print("calibrated in {:.1f} s\n\n", seconds(start));

  const LanguageModel reference = LanguageModel::load(folder.string(), {.type = DType::float32, .fast = false});
  const std::string text = read(texts / "eval.txt");
  fmt::print(
      "| type | plain | importance | gptq | awq | million weights per second: gptq |\n|---|---|---|---|---|---|\n");
  for (const std::string_view type : types) {
    std::vector<LanguageModel> models;
    double speed = 0;
    for (const Method& method : kMethods) {
      ConvertOptions options = options_of(type);
      if (method.calibrated) options.calibration = calibration;
      options.rounding = method.rounding;
      const std::string path = temporary.path() / fmt::format("{}", method.name);
      const auto begin = std::chrono::steady_clock::now();
      const ConvertReport report = convert_model(folder.string(), path, options);
      if (method.rounding == Rounding::compensated) {
        speed = static_cast<double>(report.parameters) / seconds(begin) * 1e-6;
      }
      models.push_back(LanguageModel::load(path));
    }
    std::vector<const LanguageModel*> others;
    for (const LanguageModel& model : models) others.push_back(&model);
    std::string line = fmt::format("| {} ", type);
    for (const DivergenceReport& report : measure_divergence(reference, others, text, {.progress = show})) {
      line += fmt::format("| {:.6f} ", report.mean);
    }
    fmt::print("{}| {:.1f} |\n", line, speed);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  const std::filesystem::path reference = std::filesystem::path(IMAGO_SHARED) / "reference";
  if (!std::filesystem::exists(reference / "lm/config.json") || !std::filesystem::exists(reference / "text/eval.txt")) {
    fmt::print("skipped: no reference data in {}\n", reference.string());
    return 0;
  }
  std::vector<std::string_view> types(argv + 1, argv + argc);
  if (types.empty()) types.assign(std::begin(imago::bench::kTypes), std::end(imago::bench::kTypes));
  try {
    imago::bench::bench(reference / "lm", reference / "text", types);
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_methods: {}\n", error.what());
    return 1;
  }
  return 0;
}
