// What quantizing a trained language model costs, beside llama.cpp: reference/lm in each type, --pure and with int8
// activations, against the same model in float32, as the Markdown table of docs/lm.md.
// imago_bench_lm_quality [TYPE ...]

#include <fmt/format.h>

#include <algorithm>
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
#include "testing/temp_dir.h"

namespace imago::bench {
namespace {

/// llama.cpp b21e4de on x86 with VNNI: llama-quantize --pure, then llama-perplexity --kl-divergence with windows of 512
/// and a float16 cache. From reference/lm/README.md.
struct Theirs {
  std::string_view type;
  std::uint64_t file_bytes;
  double perplexity, divergence, same_top;
};
constexpr Theirs kLlamaCpp[] = {
    {"f16", 41718976, 9.3621, 0.000001, 0.9995},    {"bf16", 41718976, 9.3627, 0.000018, 0.9980},
    {"q8_0", 22303936, 9.3679, 0.000499, 0.9880},   {"q6_k", 17288384, 9.3696, 0.003223, 0.9718},
    {"q5_k", 14537920, 9.4368, 0.010140, 0.9505},   {"q5_1", 15832256, 9.4556, 0.010396, 0.9486},
    {"q5_0", 14537920, 9.4559, 0.013078, 0.9437},   {"q4_k", 11949248, 9.5498, 0.036593, 0.9074},
    {"iq4_nl", 11949248, 9.5767, 0.040120, 0.9052}, {"q4_1", 13243584, 9.7068, 0.044479, 0.8995},
    {"q4_0", 11949248, 9.7084, 0.053613, 0.8883},   {"q3_k", 9198784, 10.4949, 0.170110, 0.8141},
    {"q2_k", 7095488, 17.7839, 0.821724, 0.6055},   {"tq2_0", 5639360, 1.8e6, 12.88, 0.0004},
};

/// Those named, or all.
std::vector<Theirs> wanted(int argc, char** argv) {
  if (argc < 2) return {std::begin(kLlamaCpp), std::end(kLlamaCpp)};
  std::vector<Theirs> some;
  for (int i = 1; i < argc; ++i) {
    const auto found = std::ranges::find(kLlamaCpp, std::string_view(argv[i]), &Theirs::type);
    if (found == std::end(kLlamaCpp)) throw std::runtime_error(fmt::format("no figures of llama.cpp for {}", argv[i]));
    some.push_back(*found);
  }
  return some;
}

std::string perplexity_text(double perplexity) {
  return perplexity < 1e4 ? fmt::format("{:.4f}", perplexity) : fmt::format("{:.1e}", perplexity);
}

void bench(const std::filesystem::path& folder, const std::filesystem::path& text_path,
           const std::vector<Theirs>& types) {
  std::ifstream file(text_path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const testing::TempDir temporary;
  const LanguageModel reference = LanguageModel::load(folder.string(), {.type = DType::float32, .fast = false});
  std::vector<LanguageModel> models;
  std::vector<std::uint64_t> bytes;
  for (const Theirs& theirs : types) {
    const std::string path = temporary.path() / fmt::format("{}.gguf", theirs.type);
    ConvertOptions options;
    options.type = parse_format(theirs.type);
    options.pure = true;
    convert_model(folder.string(), path, options);
    bytes.push_back(std::filesystem::file_size(path));
    models.push_back(LanguageModel::load(path));
  }
  std::vector<const LanguageModel*> others;
  for (const LanguageModel& model : models) others.push_back(&model);
  const std::vector<DivergenceReport> reports =
      measure_divergence(reference, others, text, {.progress = [](std::size_t done, std::size_t total) {
                           fmt::print(stderr, "\r{} of {} windows{}", done, total, done == total ? "\n" : "");
                         }});
  fmt::print("float32: perplexity {:.4f} over {} positions in {} windows; in brackets llama.cpp b21e4de\n\n",
             reports.front().reference_perplexity, reports.front().tokens_scored, reports.front().windows);
  fmt::print("| type | file bytes | perplexity | mean KL | of llama.cpp's | median | 99 % | same top token |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (std::size_t i = 0; i < types.size(); ++i) {
    const DivergenceReport& ours = reports[i];
    const Theirs& theirs = types[i];
    fmt::print("| {} | {} ({}) | {} ({}) | {:.6f} ({:.6f}) | {:.3f} | {:.6f} | {:.6f} | {:.2f} % ({:.2f} %) |\n",
               theirs.type, bytes[i], theirs.file_bytes, perplexity_text(ours.perplexity),
               perplexity_text(theirs.perplexity), ours.mean, theirs.divergence, ours.mean / theirs.divergence,
               ours.median, ours.percentile_99, 100 * ours.same_top, 100 * theirs.same_top);
  }
}

}  // namespace
}  // namespace imago::bench

int main(int argc, char** argv) {
  const std::filesystem::path reference = std::filesystem::path(IMAGO_SHARED) / "reference";
  const std::filesystem::path model = reference / "lm", text = reference / "text/eval.txt";
  if (!std::filesystem::exists(model / "config.json") || !std::filesystem::exists(text)) {
    fmt::print("skipped: no reference data: {} and {}\n", model.string(), text.string());
    return 0;
  }
  try {
    imago::bench::bench(model, text, imago::bench::wanted(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "imago_bench_lm_quality: {}\n", error.what());
    return 1;
  }
  return 0;
}
