// The part of `imago demo` about a language model: one model at several precisions.

#include "model_options.h"

namespace imago::cli {

namespace {

constexpr std::size_t kShown = 32, kMeasured = 384, kWindow = 64;

GenerateResult continue_prompt(const LanguageModel& model, std::size_t tokens, float temperature) {
  GenerateOptions options{.max_tokens = tokens, .ignore_end = true};
  options.sampler.temperature = temperature;
  options.sampler.seed = 1;
  const std::vector<TokenId> prompt = encode_prompt(model.require_tokenizer(), kDemoPrompt);
  Sequence sequence(model, {.context = prompt.size() + tokens});
  return generate(sequence, prompt, options);
}

void write_text(const LanguageModel& model, DemoModel& made) {
  const GenerateResult result = continue_prompt(model, kShown, 0);
  made.text = result.text;
  std::replace(made.text.begin(), made.text.end(), '\n', ' ');
  made.tokens_per_second = static_cast<double>(result.ids.size()) / std::max(result.generate_seconds, 1e-9);
}

}  // namespace

std::vector<DemoModel> measure_demo_models(const std::string& path, bool quiet) {
  const Format types[] = {BlockFormat::q5_k, BlockFormat::q4_0, BlockFormat::q3_k, BlockFormat::q2_k};
  Progress progress(quiet);
  const LanguageModel stored = LanguageModel::load(path);
  std::vector<DemoModel> made = {{.type = "as stored", .parameters = stored.parameters(), .bytes = stored.bytes()}};
  const std::string text = kDemoPrompt + continue_prompt(stored, kMeasured, 0.8f).text;
  write_text(stored, made.front());
  for (const Format type : types) {
    progress.show(made.size(), std::size(types) + 1, std::string(type.name()));
    const LanguageModel model = LanguageModel::load(path, {.type = type});
    DemoModel row{.type = std::string(type.name()), .parameters = model.parameters(), .bytes = model.bytes()};
    row.divergence = measure_divergence(stored, model, text, {.context = kWindow});
    write_text(model, row);
    made.push_back(std::move(row));
  }
  made.front().divergence.perplexity = made.back().divergence.reference_perplexity;
  made.front().divergence.same_top = 1;
  return made;
}

}  // namespace imago::cli
