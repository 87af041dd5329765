#include "model_options.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <system_error>

namespace imago::cli {

namespace {

std::size_t parse_gpu_layers(const std::string& text) {
  if (text == "all") return std::numeric_limits<std::size_t>::max();
  std::size_t layers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(fmt::format("--gpu-layers is '{}'; it can be a number of layers or 'all'", printable(text)));
  }
  return layers;
}

constexpr const char* kModelForms = "A GGUF file, a Hugging Face folder, or a network that is a language model";

}  // namespace

void add_model_argument(CLI::App& command, std::string& path, const std::string& what) {
  add_file(command, "-m,--model,MODEL", path, what + " (default: IMAGO_MODEL, else the bundled model)");
}

void add_model(CLI::App& command, ModelOptions& options) {
  add_model_argument(command, options.path, kModelForms);
  add_model_settings(command, options);
}

void add_model_settings(CLI::App& command, ModelOptions& options) {
  add_file(command, "--tokenizer", options.tokenizer,
           "Folder, GGUF file or tokenizer.json with the tokenizer (default: that of the model)");
  add_parsed(command, "--type", options.type, parse_format, "TYPE",
             "Convert matrices to this type while loading; rows that fit no block of it take one with smaller blocks "
             "(default: as stored)");
  add_arithmetic(command, options.fast);
  add_device(command, options.device);
  add_parsed(command, "--gpu-layers", options.gpu_layers, parse_gpu_layers, "N|all",
             "How many of the last layers the GPU computes; the CPU computes the others (default: all)");
}

LanguageModel load_model(const ModelOptions& options) {
  LanguageModelOptions load{.type = options.type,
                            .fast = options.fast,
                            .tokenizer = options.tokenizer,
                            .device = open_chosen(options.device)};
  if (options.gpu_layers && !load.device) throw UsageError("--gpu-layers needs a GPU: add --device cuda");
  load.gpu_layers = options.gpu_layers.value_or(load.gpu_layers);
  auto progress = std::make_unique<Progress>(options.quiet);
  load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress->show(done, total, "loading", Progress::Unit::bytes);
  };
  const std::string path = model_path(options.path);
  if (!options.quiet && ::isatty(STDERR_FILENO) == 1 && path == bundled_model()) {
    fmt::print(stderr, "imago: this is the bundled model; it imitates its books and knows no facts\n");
  }
  LanguageModel model = LanguageModel::load(path, load);
  progress.reset();
  if (!options.quiet) {
    for (const std::string& note : model.notes()) fmt::print(stderr, "imago: note: {}\n", printable(note));
  }
  return model;
}

std::vector<TokenId> encode_text(const std::string& path, std::string_view text) {
  return Tokenizer::load(path).encode(text);
}

std::vector<TokenId> parse_ids(const std::string& text) {
  std::vector<TokenId> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_spaces = [&] {
    while (at != end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) ++at;
  };
  for (;;) {
    skip_spaces();
    TokenId id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error == std::errc::result_out_of_range) {
      throw UsageError(fmt::format("--ids: number {} is too large for a token id", ids.size() + 1));
    }
    if (error != std::errc()) {
      throw UsageError(fmt::format("--ids: number {} is missing or not a number; write them as 1,2,3", ids.size() + 1));
    }
    ids.push_back(id);
    at = next;
    skip_spaces();
    if (at == end) return ids;
    if (*at != ',') throw UsageError(fmt::format("--ids: '{}' after number {}; write them as 1,2,3", *at, ids.size()));
    ++at;
  }
}

void warn_of_long_context(const LanguageModel& model, std::size_t context, bool quiet) {
  if (quiet || model.context() == 0 || context <= model.context()) return;
  fmt::print(stderr,
             "imago: warning: the context has {} tokens, but the model was trained for {}; expect nonsense beyond\n",
             context, model.context());
}

namespace {

std::pair<TokenId, float> parse_bias(const std::string& text) {
  TokenId id = -1;
  float bias = 0;
  const char* const end = text.data() + text.size();
  auto [at, error] = std::from_chars(text.data(), end, id);
  const bool named = error == std::errc() && at != end;
  if (named && (*at == '=' || *at == '+')) ++at;
  const auto [last, problem] = std::from_chars(at, end, bias);
  if (!named || problem != std::errc() || last != end) {
    throw UsageError(fmt::format("--logit-bias '{}' is not ID=NUMBER, such as 42=-1.5 or 42=-inf", printable(text)));
  }
  return {id, bias};
}

}  // namespace

void add_generation(CLI::App& command, GenerationOptions& options, long long predict) {
  options.predict = predict;
  SamplerOptions& sampler = options.generate.sampler;
  add_model_argument(command, options.model.path, kModelForms);
  add_number(command, "-n,--predict,--n-predict", options.predict, -1LL, 1LL << 40,
             fmt::format("Most tokens to generate; -1: until the model stops (default: {})", predict));
  add_number(command, "-c,--ctx-size", options.sequence.context, 0, 1 << 24,
             predict < 0 ? "Tokens of context (default: 0, that of the model, at most 4096)"
                         : "Tokens of context (default: 0, what prompt and -n need, at most that of the model)");
  command.add_option("--temp,--temperature", sampler.temperature,
                     "Temperature; 0: the most likely token (default: 0.8)");
  add_value(command, "--top-k", sampler.top_k, "K", "Choose among the K most likely tokens; 0: all (default: 40)");
  command.add_option("--top-p", sampler.top_p,
                     "Choose among the most likely tokens that reach P together; 1: all (default: 0.95)");
  command.add_option("--min-p", sampler.min_p,
                     "Choose among tokens with at least P times the largest probability; 0: all (default: 0.05)");
  command.add_option("--typical", sampler.typical_p,
                     "Choose among the most typical tokens that reach P together; 1: off (default: 1)");
  command.add_option("--repeat-penalty", sampler.repeat_penalty,
                     "Divide the logits of earlier tokens by this; 1: off (default: 1)");
  command.add_option("--repeat-last-n", sampler.penalty_tokens,
                     "How many tokens penalties look back; -1: all (default: 64)");
  command.add_option("--presence-penalty", sampler.presence_penalty,
                     "Subtract this from the logits of earlier tokens (default: 0)");
  command.add_option("--frequency-penalty", sampler.frequency_penalty,
                     "The same for each time a token occurred (default: 0)");
  add_parsed(command, "-l,--logit-bias", sampler.bias, parse_bias, "ID=X",
             "Add a number to the logit of a token; -inf forbids it (repeatable)")
      ->allow_extra_args(false);
  add_seed(command, sampler.seed, "Makes sampling repeatable (default: 0, from the clock)");
  add_value(command, "-r,--reverse-prompt,--stop", options.generate.stop, "TEXT", "Stop before this text (repeatable)")
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", options.generate.ignore_end, "Continue after an end token (default: stop)");
  add_choice(command, "--cache-type", options.sequence.cache,
             {{"f32", CacheKind::float32}, {"f16", CacheKind::float16}, {"q8_0", CacheKind::q8_0}},
             "Type of cached keys and values (default: f16)");
  add_number(command, "-b,--batch-size", options.sequence.batch, 1, 65536,
             "Tokens of a prompt that run together (default: 512; 2048 if all layers are on a GPU)");
  add_model_settings(command, options.model);
  add_threads(command, options.threads);
  add_quiet(command, options.model.quiet);
}

GenerateOptions generate_options(const GenerationOptions& options) {
  GenerateOptions made = options.generate;
  made.max_tokens =
      options.predict < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(options.predict);
  const Sampler checked(made.sampler);
  return made;
}

EngineOptions engine_options(const GenerationOptions& options) {
  return {.context = options.sequence.context,
          .cache = options.sequence.cache,
          .parallel = 1,
          .prompt_tokens = options.sequence.batch};
}

void show(std::string_view text) {
  static const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (!terminal) return print(text);
  std::string safe;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const bool wide = byte(i) == 0xC2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xA0;  // U+0080 to U+009F
    const bool narrow = (byte(i) < 0x20 && byte(i) != '\n' && byte(i) != '\t') || byte(i) == 0x7F;
    if (wide) ++i;
    if (!wide && !narrow) safe += text[i];
  }
  print(safe);
}

std::string rate(std::size_t tokens, double seconds) {
  return fmt::format("{} tokens in {:.2f} s, {:.1f}/s", format_count(tokens), seconds,
                     seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
}

std::vector<Command> add_language_commands(CLI::App& program) {
  std::vector<Command> commands;
  add_group(program, commands, "Language models",
            {add_run, add_chat, add_serve, add_embed, add_rerank, add_tokenize, add_logits, add_eval});
  add_group(program, commands, "What precision costs", {add_calibrate, add_plan});
  return commands;
}

}  // namespace imago::cli
