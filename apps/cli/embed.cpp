// imago embed: what a language model makes of a text, as one vector or as one for each token.

#include "model_options.h"

namespace imago::cli {

namespace {

struct EmbedCommand {
  ModelOptions model;
  CommonOptions common;
  std::optional<std::string> text, file;
  std::string ids, output;
  EmbedOptions embed;
};

std::vector<TokenId> ids_of(const EmbedCommand& options, const LanguageModel& model) {
  if (!options.ids.empty()) return parse_ids(options.ids);
  return encode_whole(model.require_tokenizer(), options.text ? *options.text : read_text(*options.file));
}

void write_hidden(const std::string& path, const LanguageModel& model, std::span<const TokenId> ids) {
  const std::vector<float> hidden = hidden_states(model, ids);
  SafetensorsWriter writer(path, {{"hidden", SafetensorsType::f32, Shape{ids.size(), hidden.size() / ids.size()}}});
  writer.write("hidden", hidden);
  writer.commit();
}

void embed(const EmbedCommand& options) {
  if (int{options.text.has_value()} + int{options.file.has_value()} + int{!options.ids.empty()} != 1) {
    throw UsageError("embed needs one of --text, --file and --ids");
  }
  if (!options.output.empty() && options.common.json) {
    throw UsageError("-o writes the hidden states of the tokens, and --json prints one embedding: choose one");
  }
  set_thread_count(options.common.threads);
  auto model = std::make_shared<LanguageModel>(load_model(options.model));
  const std::vector<TokenId> ids = ids_of(options, *model);
  if (!options.output.empty()) return write_hidden(options.output, *model, ids);
  const std::size_t context = std::max<std::size_t>(1, std::min(ids.size(), model->max_positions()));
  Engine engine(model, {.context = context, .cache = CacheKind::float32, .parallel = 1});
  const std::vector<std::vector<float>> vectors = engine.embed({&ids, 1}, options.embed);
  if (options.common.json) return print_json({{"embedding", vectors.front()}, {"tokens", ids.size()}});
  print(fmt::format("{}\n", fmt::join(vectors.front(), " ")));
}

}  // namespace

Command add_embed(CLI::App& program) {
  CLI::App* command = program.add_subcommand("embed", "Turn a text into a vector");
  const auto options = std::make_shared<EmbedCommand>();
  options->model.fast = false;  // what it prints is compared with other programs
  add_model(*command, options->model);
  add_value(*command, "--text,-p,--prompt", options->text, "TEXT", "The text (default: none)");
  add_file(*command, "-f,--file", options->file, "A file with the text, read byte for byte (default: none)");
  add_value(*command, "--ids", options->ids, "IDS", "Token ids instead of a text: 1,2,3 (default: none)");
  add_choice(*command, "--pooling", options->embed.pooling,
             {{"mean", Pooling::mean}, {"cls", Pooling::cls}, {"last", Pooling::last}},
             "Which tokens the vector is made of: all, the first or the last (default: as the model says, else mean)");
  command->add_flag("--normalize", options->embed.normalize, "Scale the vector to a length of 1 (default: as it is)");
  add_file(*command, "-o,--output", options->output,
           "Safetensors file to write instead: 'hidden', the last hidden state of each token (default: none)");
  add_common(*command, options->common);
  command->footer(
      "Examples:\n  imago embed folder --text 'Hello, world!' --normalize\n"
      "  imago embed model.gguf --file note.txt --pooling last --json\n"
      "  imago embed folder --ids 1,2,3 -o hidden.safetensors");
  return {command, [options] {
            options->model.quiet = options->common.quiet;
            embed(*options);
          }};
}

}  // namespace imago::cli
