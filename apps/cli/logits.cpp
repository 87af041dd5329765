// imago logits: the logits of a language model after each of the given tokens.

#include "model_options.h"

namespace imago::cli {

namespace {

struct LogitsCommand {
  ModelOptions model;
  std::string ids, output;
  std::size_t batch = 512;
  int threads = 0;
};

void logits(const LogitsCommand& options) {
  const std::vector<TokenId> ids = parse_ids(options.ids);
  set_thread_count(options.threads);
  const LanguageModel model = load_model(options.model);
  // float32 keys and values, because logits are compared with those of other programs.
  Sequence sequence(model, {.context = ids.size(), .cache = CacheKind::float32, .batch = options.batch});
  SafetensorsWriter writer(options.output, {{"logits", SafetensorsType::f32, Shape{ids.size(), model.vocabulary()}}});
  // Batch by batch, because all logits of a long text may not fit into memory.
  std::vector<float> rows;
  Progress progress(options.model.quiet);
  for (std::size_t first = 0; first < ids.size(); first += options.batch) {
    const std::size_t count = std::min(options.batch, ids.size() - first);
    rows.resize(count * model.vocabulary());
    sequence.append(std::span(ids).subspan(first, count), rows);
    writer.write("logits", rows);
    progress.show(first + count, ids.size(), "tokens");
  }
  writer.commit();
}

}  // namespace

Command add_logits(CLI::App& program) {
  CLI::App* command = program.add_subcommand("logits", "Write the logits of a language model for given tokens");
  const auto options = std::make_shared<LogitsCommand>();
  options->model.fast = false;  // what it prints is compared with other programs
  add_model(*command, options->model);
  add_value(*command, "--ids", options->ids, "IDS", "Token ids: 1,2,3")->required();
  add_file(*command, "-o,--output", options->output, "Safetensors file to write: 'logits', [ids, vocabulary]")
      ->required();
  add_number(*command, "--batch", options->batch, 1, 65536, "Tokens that run together (default: 512)");
  add_threads(*command, options->threads);
  add_quiet(*command, options->model.quiet);
  command->footer(
      "Examples:\n  imago logits model.gguf --ids 1,2,3 -o logits.safetensors\n"
      "  imago logits folder --ids 1,2,3 --exact -o logits.safetensors");
  return {command, [options] { logits(*options); }};
}

}  // namespace imago::cli
