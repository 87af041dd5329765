// Stubs for a build without language models (IMAGO_LM=OFF).

#include "model_options.h"

namespace imago::cli {

std::vector<Command> add_language_commands(CLI::App&) { return {}; }

void add_model_bench(CLI::App&, ModelBench&) {}

std::vector<TokenId> encode_text(const std::string& path, std::string_view) {
  throw UnsupportedError(path + ": this build of imago has no tokenizers; build it with IMAGO_LM=ON");
}

std::vector<DemoModel> measure_demo_models(const std::string&, bool) { return {}; }

void bench_language_model(const ModelBench&, bool) {
  throw UnsupportedError("this build of imago has no language models; build it with IMAGO_LM=ON");
}

}  // namespace imago::cli
