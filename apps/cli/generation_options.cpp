#include "generation_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "imago/error.h"
#include "output.h"
#include "shared_options.h"

namespace imago::cli {

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
  SamplerOptions& sampler = options.sampler;
  add_model_argument(command, options.model.path, "A GGUF file or a Hugging Face folder");
  command
      .add_option("-n,--predict,--n-predict", options.predict,
                  fmt::format("Tokens at most; -1: until the model ends (default: {})", predict))
      ->type_name("N")
      ->check(CLI::Range(-1LL, 1LL << 40));
  command
      .add_option("-c,--ctx-size", options.context,
                  predict < 0 ? "Tokens of context (default: 0, what the model has, at most 4096)"
                              : "Tokens of context (default: 0, what prompt and -n need, as far as the model has it)")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 24));
  command.add_option("--temp,--temperature", sampler.temperature,
                     "Temperature; 0: the most likely token (default: 0.8)");
  command.add_option("--top-k", sampler.top_k, "Choose among the K most likely; 0: all (default: 40)")->type_name("K");
  command.add_option("--top-p", sampler.top_p, "Choose among those that reach P together; 1: all (default: 0.95)");
  command.add_option("--min-p", sampler.min_p, "Choose among those of P times the largest; 0: all (default: 0.05)");
  command.add_option("--typical", sampler.typical_p, "Choose among the typical ones that reach P; 1: off (default: 1)");
  command.add_option("--repeat-penalty", sampler.repeat_penalty, "Divide what came before; 1: off (default: 1)");
  command.add_option("--repeat-last-n", sampler.penalty_tokens,
                     "Tokens that penalties look back; -1: all (default: 64)");
  command.add_option("--presence-penalty", sampler.presence_penalty,
                     "Subtract once from what came before (default: 0)");
  command.add_option("--frequency-penalty", sampler.frequency_penalty, "Subtract for each time it came (default: 0)");
  command.add_option("-l,--logit-bias", options.bias, "ID=NUMBER, added to a token; -inf forbids it (repeatable)")
      ->type_name("ID=X")
      ->allow_extra_args(false);
  add_seed(command, sampler.seed, "Makes the choices repeatable (default: 0, from the clock)");
  command.add_option("-r,--reverse-prompt,--stop", options.stop, "End before this text (repeatable)")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", options.ignore_end, "Go on where the model ends (default: stop)");
  command.add_option("--cache-type", options.cache, "Type of keys and values (default: f16)")
      ->type_name("f32|f16|q8_0");
  command
      .add_option("-b,--batch-size", options.batch,
                  "Tokens of a prompt that run together (default: 512; 2048 where all layers are on a GPU)")
      ->type_name("N")
      ->check(CLI::Range(1, 65536));
  add_model_settings(command, options.model);
  add_threads(command, options.threads);
  add_quiet(command, options.model.quiet);
}

GenerateOptions generate_options(const GenerationOptions& options) {
  GenerateOptions made;
  made.max_tokens =
      options.predict < 0 ? std::numeric_limits<std::size_t>::max() : static_cast<std::size_t>(options.predict);
  made.sampler = options.sampler;
  for (const std::string& bias : options.bias) made.sampler.bias.push_back(parse_bias(bias));
  made.stop = options.stop;
  made.ignore_end = options.ignore_end;
  const Sampler checked(made.sampler);
  return made;
}

CacheKind cache_kind(const std::string& name) {
  if (name == "f32") return CacheKind::float32;
  if (name == "f16") return CacheKind::float16;
  if (name == "q8_0") return CacheKind::q8_0;
  throw UsageError(fmt::format("--cache-type is '{}'; it can be f32, f16 or q8_0", printable(name)));
}

std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text) {
  const auto spelled = [&](std::optional<TokenId> id) { return id ? tokenizer.piece(*id, true) : std::string(); };
  // Templates write the BOS that the tokenizer would add once more.
  const std::string bos = spelled(tokenizer.bos()), eos = spelled(tokenizer.eos());
  const bool doubled = tokenizer.adds_bos() && !bos.empty() && text.starts_with(bos);
  std::vector<TokenId> ids = tokenizer.encode(doubled ? text.substr(bos.size()) : text, true);
  const bool asked = !eos.empty() && text.ends_with(eos);
  if (!ids.empty() && ids.size() > 1 && ids.back() == tokenizer.eos() && !asked) ids.pop_back();
  return ids;
}

std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
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

}  // namespace imago::cli
