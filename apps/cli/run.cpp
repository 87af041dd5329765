// imago run: continues a text.

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "model_options.h"

namespace imago::cli {

namespace {

struct RunCommand {
  GenerationOptions generation;
  std::optional<std::string> prompt;
  std::string file, prompt_cache;
  bool escape = false;
  bool special = false;
  bool json = false;
};

/// Replaces \n, \t, \r, \\, \' and \" as C does; other backslashes stay.
std::string unescaped(const std::string& text) {
  constexpr std::string_view kLetters = "ntr\\'\"", kMeant = "\n\t\r\\'\"";
  std::string made;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t place =
        text[i] == '\\' && i + 1 < text.size() ? kLetters.find(text[i + 1]) : std::string_view::npos;
    made += place == std::string_view::npos ? text[i] : kMeant[place];
    if (place != std::string_view::npos) ++i;
  }
  return made;
}

std::string read_standard_input() {
  std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  if (std::ferror(stdin) != 0) throw IoError("standard input", "cannot be read; give the prompt with -p");
  return text;
}

std::string prompt_text(const RunCommand& options) {
  if (options.prompt) return *options.prompt;
  if (options.file.empty() && ::isatty(STDIN_FILENO) == 1) {
    throw UsageError("no prompt given; use -p TEXT, -f FILE or standard input");
  }
  std::string text = options.file.empty() ? read_standard_input() : read_text(options.file);
  if (text.ends_with('\n')) text.pop_back();  // ends the last line, not part of the prompt
  return text;
}

std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<TokenId> ids = encode_prompt(tokenizer, text);
  if (!ids.empty()) return ids;
  const std::optional<TokenId> start = tokenizer.bos() ? tokenizer.bos() : tokenizer.eos();
  if (!start) throw UsageError("the prompt is empty, and the tokenizer has no token that starts a text");
  return {*start};
}

/// -c, else what prompt and answer need, limited by the model.
std::size_t context_for(const RunCommand& options, const LanguageModel& model, std::size_t prompt) {
  constexpr std::size_t kOpenEnd = 4096;  // if the length is not limited
  if (options.generation.sequence.context != 0) return options.generation.sequence.context;
  const bool open = options.generation.predict < 0 || !options.prompt_cache.empty();
  const std::size_t more = open ? kOpenEnd : static_cast<std::size_t>(options.generation.predict);
  return std::min(std::max(model.context(), std::size_t{1}), prompt + std::max<std::size_t>(more, 1));
}

Json describe(const Tokenizer& tokenizer, const TokenProbability& entry) {
  const bool spelled = static_cast<std::size_t>(entry.id) < tokenizer.size();
  return {{"id", entry.id},
          {"text", spelled ? tokenizer.piece(entry.id, true) : std::string()},
          {"logprob", entry.log_probability}};
}

std::string_view end_name(EndReason reason) {
  switch (reason) {
    case EndReason::max_tokens: return "max_tokens";
    case EndReason::end_token: return "end_token";
    case EndReason::stop_string: return "stop_string";
    case EndReason::context_full: return "context_full";
    case EndReason::cancelled: return "cancelled";
  }
  return "unknown";
}

void print_result(const RequestResult& result, const Json& log_probabilities, const LanguageModel& model) {
  Json object = {{"text", result.text},
                 {"ids", result.ids},
                 {"end", end_name(result.end)},
                 {"prompt_tokens", result.cached_tokens + result.prompt_tokens},
                 {"prompt_seconds", result.prompt_seconds},
                 {"generated_tokens", result.ids.size()},
                 {"generate_seconds", result.generate_seconds},
                 {"type", model.type()}};
  if (!log_probabilities.empty()) object["logprobs"] = log_probabilities;
  print_json(object);
}

void run(const RunCommand& options) {
  const GenerateOptions generation = generate_options(options.generation);
  if (generation.log_probabilities > 0 && !options.json) throw UsageError("--logprobs needs --json");
  ModelOptions load = options.generation.model;
  load.path = model_path(load.path);
  const std::string text = options.escape ? unescaped(prompt_text(options)) : prompt_text(options);
  set_thread_count(options.generation.threads);
  const auto model = std::make_shared<LanguageModel>(load_model(load));
  const Tokenizer& tokenizer = model->require_tokenizer();
  const std::vector<TokenId> ids = prompt_ids(tokenizer, text);

  EngineOptions one = engine_options(options.generation);
  one.context = context_for(options, *model, ids.size());
  if (ids.size() > one.context) {
    throw UsageError(fmt::format("the prompt has {} tokens, but the context has room for {}; shorten it, or raise -c",
                                 ids.size(), one.context));
  }
  Engine engine(model, one);
  const std::string& cache = options.prompt_cache;
  if (!cache.empty() && std::filesystem::exists(cache)) blame(cache, [&] { engine.load_prefix(cache); });

  Json log_probabilities = Json::array();
  std::optional<Progress> reading(std::in_place, load.quiet);  // until the answer begins
  bool saved = cache.empty();
  const RequestResult result =
      engine.submit({.prompt = ids, .generate = generation}).finish([&](const EngineEvent& event) {
        if (!saved && event.prompt_done == ids.size()) {
          engine.save_prefix(ids, cache);
          saved = true;
        }
        if (!event.token) {
          reading->show(event.prompt_done, event.prompt_total, "reading the prompt");
          return true;
        }
        reading.reset();
        const GeneratedToken& token = *event.token;
        if (!options.json) {
          if (options.special && tokenizer.is_control(token.id)) show(tokenizer.piece(token.id, true));
          show(token.text);
        }
        if (!token.top.empty()) {
          Json entry;
          for (const TokenProbability& top : token.top) {
            if (top.id == token.id) entry = describe(tokenizer, top);
          }
          for (std::size_t i = 0; i < std::min(generation.log_probabilities, token.top.size()); ++i) {
            entry["top"].push_back(describe(tokenizer, token.top[i]));
          }
          log_probabilities.push_back(std::move(entry));
        }
        return true;
      });
  reading.reset();
  warn_of_long_context(*model, one.context, load.quiet);  // at the end, so that a failure prints only one line

  if (options.json) return print_result(result, log_probabilities, *model);
  print("\n");
  if (load.quiet) return;
  if (result.end == EndReason::context_full) {
    fmt::print(stderr, "imago: the context of {} tokens is full, so the text ends here; -c gives more room\n",
               one.context);
  }
  fmt::print(stderr, "prompt: {}\ngeneration: {}\n",
             rate(result.cached_tokens + result.prompt_tokens, result.prompt_seconds),
             rate(result.ids.size(), result.generate_seconds));
}

}  // namespace

Command add_run(CLI::App& program) {
  CLI::App* command = program.add_subcommand("run", "Continue a text with a language model");
  const auto options = std::make_shared<RunCommand>();
  add_generation(*command, options->generation, 256);
  CLI::Option* prompt =
      add_value(*command, "-p,--prompt", options->prompt, "TEXT", "The text (default: standard input)");
  add_file(*command, "-f,--file", options->file, "A file with the text (default: none)")->excludes(prompt);
  command->add_flag("-e,--escape", options->escape,
                    "Interpret \\n, \\t, \\r, \\\\, \\' and \\\" in the text (default: off)");
  add_file(*command, "--prompt-cache", options->prompt_cache,
           "Save the state after the prompt in this file, and start from it (default: none)");
  add_number(*command, "--logprobs", options->generation.generate.log_probabilities, 0, 1000,
             "Number of most likely tokens to report, with --json (default: 0)");
  command->add_flag("--special", options->special, "Show special tokens by name (default: hide them)");
  add_json(*command, options->json);
  command->footer(
      "Prints only the continuation, as it is generated. The newline that ends a file or standard input is not part of "
      "the prompt.\n"
      "Examples:\n  imago run -p 'To be, or not to be'\n  imago run model.gguf -p 'Once upon a time' -n 64\n  imago "
      "run folder --temp 0 --type q4_k < text.txt");
  return {command, [options] { run(*options); }};
}

}  // namespace imago::cli
