#include "demo_language.h"

#include <algorithm>
#include <span>

#include "generation_options.h"
#include "progress.h"

namespace imago::cli {

namespace {

// Shakespeare, Hamlet, act 3: long enough for a few windows.
constexpr const char* kPassage =
    "To be, or not to be, that is the question:\n"
    "Whether 'tis nobler in the mind to suffer\n"
    "The slings and arrows of outrageous fortune,\n"
    "Or to take arms against a sea of troubles,\n"
    "And by opposing end them. To die, to sleep,\n"
    "No more; and by a sleep to say we end\n"
    "The heart-ache and the thousand natural shocks\n"
    "That flesh is heir to: 'tis a consummation\n"
    "Devoutly to be wish'd. To die, to sleep;\n"
    "To sleep, perchance to dream. Ay, there's the rub:\n"
    "For in that sleep of death what dreams may come,\n"
    "When we have shuffled off this mortal coil,\n"
    "Must give us pause. There's the respect\n"
    "That makes calamity of so long life.\n"
    "For who would bear the whips and scorns of time,\n"
    "The oppressor's wrong, the proud man's contumely,\n"
    "The pangs of dispriz'd love, the law's delay,\n"
    "The insolence of office, and the spurns\n"
    "That patient merit of the unworthy takes,\n"
    "When he himself might his quietus make\n"
    "With a bare bodkin? Who would these fardels bear,\n"
    "To grunt and sweat under a weary life,\n"
    "But that the dread of something after death,\n"
    "The undiscover'd country from whose bourn\n"
    "No traveller returns, puzzles the will,\n"
    "And makes us rather bear those ills we have\n"
    "Than fly to others that we know not of?\n"
    "Thus conscience does make cowards of us all.\n";

constexpr std::size_t kTokens = 32, kWindow = 64;

void write_on(const LanguageModel& model, DemoModel& made) {
  GenerateOptions options{.max_tokens = kTokens};
  options.sampler.temperature = 0;
  const std::vector<TokenId> prompt = encode_prompt(model.require_tokenizer(), kDemoPrompt);
  Sequence sequence(model, {.context = prompt.size() + kTokens + 1});
  const GenerateResult result = generate(sequence, prompt, options);
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
  write_on(stored, made.front());
  for (const Format type : types) {
    progress.show(made.size(), std::size(types) + 1, std::string(type.name()));
    const LanguageModel model = LanguageModel::load(path, {.type = type});
    DemoModel row{.type = std::string(type.name()), .parameters = model.parameters(), .bytes = model.bytes()};
    row.divergence = measure_divergence(stored, model, kPassage, {.context = kWindow});
    write_on(model, row);
    made.push_back(std::move(row));
  }
  made.front().divergence.perplexity = made.back().divergence.reference_perplexity;
  made.front().divergence.same_top = 1;
  return made;
}

}  // namespace imago::cli
