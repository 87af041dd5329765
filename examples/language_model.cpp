// A language model loaded, run and judged: an example of docs/api.md.
//
//   example_language_model MODEL

#include <cstdio>
#include <string>
#include <vector>

#include "imago/lm.h"

using namespace imago;

int main(int, char** argv) {
  const LanguageModel model = LanguageModel::load(argv[1]);  // a GGUF file or a Hugging Face folder
  const Tokenizer& tokenizer = model.require_tokenizer();
  const std::vector<TokenId> prompt = tokenizer.encode("To be, or not to be", /*special=*/true);

  GenerateOptions options{.max_tokens = 16};
  options.sampler.temperature = 0;
  Sequence sequence(model, {.context = prompt.size() + 16});
  const GenerateResult result = generate(sequence, prompt, options, [](const GeneratedToken& token) {
    std::printf("%s", token.text.c_str());  // as it comes
    return true;                            // false would stop
  });
  std::printf("\n%zu tokens\n", result.ids.size());

  // The same model with fewer bits, and how far its predictions are from those above.
  const LanguageModel small = LanguageModel::load(argv[1], {.type = BlockFormat::q4_0});
  std::string text;
  for (int i = 0; i < 40; ++i) text += "The quality of mercy is not strained. ";
  const DivergenceReport report = measure_divergence(model, small, text, {.context = 32});
  std::printf("%zu positions: same first choice at %.0f %%, mean KL %.4f\n", report.tokens_scored,
              100 * report.same_top, report.mean);
}
