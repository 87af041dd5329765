// What stands in for language models in a build without them (IMAGO_LM=OFF).

#include "bench_model.h"
#include "commands.h"
#include "imago/error.h"

namespace imago::cli {

std::vector<Command> add_language_commands(CLI::App&) { return {}; }

void add_model_bench(CLI::App&, ModelBench&) {}

void bench_language_model(const ModelBench&, bool) {
  throw UnsupportedError("this build of imago has no language models; build it with IMAGO_LM=ON");
}

}  // namespace imago::cli
