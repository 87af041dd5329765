// imago eval: how well a language model predicts a text.

#include "model_options.h"

namespace imago::cli {

namespace {

struct EvalCommand {
  ModelOptions model;
  std::string text;
  std::size_t context = 512;
  int threads = 0;
  bool json = false;
};

void eval(const EvalCommand& options) {
  const std::string text = read_text(options.text);
  set_thread_count(options.threads);
  const LanguageModel model = load_model(options.model);
  model.require_tokenizer();
  PerplexityReport report;
  {
    Progress progress(options.model.quiet);
    PerplexityOptions measure{.context = options.context};
    measure.progress = [&](std::size_t done, std::size_t total, double perplexity) {
      progress.show(done, total, fmt::format("perplexity {:.3f}", perplexity));
    };
    report = blame(options.text, [&] { return measure_perplexity(model, text, measure); });
  }
  warn_of_long_context(model, options.context, options.model.quiet);
  if (options.json) {
    print_json({{"perplexity", report.perplexity},
                {"tokens_scored", report.tokens_scored},
                {"windows", report.windows},
                {"ctx", options.context},
                {"model", model_path(options.model.path)},
                {"type", model.type()},
                {"arithmetic", arithmetic(options.model.fast)},
                {"notes", model.notes()}});
  } else {
    print(fmt::format("perplexity {:.4f} over {} tokens in {} windows of {}\n", report.perplexity,
                      format_count(report.tokens_scored), format_count(report.windows), options.context));
  }
}

}  // namespace

Command add_eval(CLI::App& program) {
  CLI::App* command = program.add_subcommand("eval", "Measure the perplexity of a language model on a text");
  const auto options = std::make_shared<EvalCommand>();
  options->model.fast = false;  // what it prints is compared with other programs
  add_model(*command, options->model);
  add_file(*command, "--text,-f,--file", options->text, "The text")->required();
  add_number(*command, "-c,--ctx-size,--ctx", options->context, 4, 1 << 24, "Tokens per window (default: 512)");
  add_threads(*command, options->threads);
  add_json(*command, options->json);
  add_quiet(*command, options->model.quiet);
  command->footer(
      "Windows do not overlap; the second half of each is scored.\n"
      "Examples:\n  imago eval model.gguf --text book.txt\n  imago eval folder --text book.txt --type q4_k --json");
  return {command, [options] { eval(*options); }};
}

}  // namespace imago::cli
