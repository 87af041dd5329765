// A running language model whose matrices change their types, step by step: the example of docs/metamorphosis.md.
//
//   example_metamorphosis MODEL TEXT

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "imago/lm.h"

using namespace imago;

int main(int, char** argv) {
  std::ifstream file(argv[2]);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const LanguageModel original = LanguageModel::load(argv[1], {.fast = false});
  LanguageModel model = LanguageModel::load(argv[1], {.fast = false});
  const auto report = [&](const char* step) {
    const DivergenceReport d = measure_divergence(original, model, text, {.context = 256});
    std::printf("%-16s %5.1f MiB  mean KL %.5f  same first choice %5.1f %%\n", step,
                static_cast<double>(model.bytes()) / (1 << 20), d.mean, 100 * d.same_top);
  };

  // A text under way: its keys and values stay valid through all that follows.
  Sequence sequence(model, {.context = 64});
  sequence.append(model.require_tokenizer().encode("The wind had risen"));

  report("as stored");
  model.morph("ffn", BlockFormat::q8_0);
  report("ffn q8_0");
  model.morph("ffn", BlockFormat::q4_k);
  report("ffn q4_k");
  model.morph("attention", BlockFormat::q4_k);
  report("attention q4_k");
  model.morph("output", BlockFormat::q6_k);  // tied here: the embedding as well
  report("output q6_k");
  model.morph("blk.0", BlockFormat::q2_k);
  report("blk.0 q2_k");
  model.undo();
  report("undo");
  model.morph("ffn_down", BlockFormat::q6_k);  // part of a name
  report("ffn_down q6_k");

  GenerateOptions options{.max_tokens = 12};
  options.sampler.temperature = 0;
  const GenerateResult result = generate(sequence, model.require_tokenizer().encode(","), options);
  std::printf("%zu tokens more\n", result.ids.size());
  for (const ModelMatrix& matrix : model.matrices()) {
    if (matrix.block == 0) std::printf("%-24s %s\n", matrix.name.c_str(), std::string(matrix.type.name()).c_str());
  }
  for (int i = 0; i < 5; ++i) model.undo();
  report("all undone");
}
