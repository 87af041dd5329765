// imago tokenize: the tokens of a text.

#include "model_options.h"

namespace imago::cli {

namespace {

struct TokenizeCommand {
  std::string model;
  std::optional<std::string> text, file;
  bool special = false;
  bool json = false;
};

void tokenize(const TokenizeCommand& options) {
  if (options.text.has_value() == options.file.has_value()) {
    throw UsageError("tokenize needs a text: either --text or --file");
  }
  const std::string text = options.text ? *options.text : read_text(*options.file);
  const Tokenizer tokenizer = Tokenizer::load(model_path(options.model));
  const std::vector<TokenId> ids = tokenizer.encode(text, options.special);
  if (options.json) {
    std::vector<std::string> tokens;
    for (const TokenId id : ids) tokens.emplace_back(tokenizer.spelling(id));
    print_json({{"ids", ids}, {"tokens", tokens}});
    return;
  }
  using enum Table::Align;
  Table table({{"id", right}, {"token"}});
  for (const TokenId id : ids) table.add({fmt::format("{}", id), printable(tokenizer.spelling(id))});
  print(fmt::format("{}\n{} tokens, {} bytes\n", table.text(), ids.size(), text.size()));
}

}  // namespace

Command add_tokenize(CLI::App& program) {
  CLI::App* command = program.add_subcommand("tokenize", "Show the tokens of a text");
  const auto options = std::make_shared<TokenizeCommand>();
  add_model_argument(*command, options->model,
                     "A GGUF file, a Hugging Face folder, a tokenizer.json, or a network with a tokenizer");
  add_value(*command, "--text,-p,--prompt", options->text, "TEXT", "The text (default: none)");
  add_file(*command, "-f,--file", options->file, "A file with the text, read byte for byte (default: none)");
  command->add_flag("--special", options->special,
                    "Recognize special tokens in the text, and add BOS and EOS if the tokenizer says so");
  add_json(*command, options->json);
  command->footer(
      "Examples:\n  imago tokenize -p 'Hello, world!'\n  imago tokenize model.gguf --text 'Hello, world!'\n"
      "  imago tokenize folder --file book.txt --special --json");
  return {command, [options] { tokenize(*options); }};
}

}  // namespace imago::cli
