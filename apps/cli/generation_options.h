#pragma once

// What `run` and `chat` share: how tokens are chosen, where the model is, and how text is shown.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "imago/lm.h"
#include "model_options.h"

namespace CLI {
class App;
}

namespace imago::cli {

struct GenerationOptions {
  ModelOptions model;
  SamplerOptions sampler;
  std::vector<std::string> bias;  ///< "ID=NUMBER"
  std::vector<std::string> stop;
  long long predict = 256;  ///< -1: until the model or the context ends
  std::size_t context = 0;
  std::string cache = "f16";
  std::optional<std::size_t> batch;  ///< none: what suits the device
  bool ignore_end = false;
  int threads = 0;
};

/// All of them but the prompt, as options of `command`.
void add_generation(CLI::App& command, GenerationOptions& options, long long predict);

/// What the loop takes. Throws UsageError for values out of range, before any model is loaded.
GenerateOptions generate_options(const GenerationOptions& options);
CacheKind cache_kind(const std::string& name);

/// With BOS where the tokenizer asks for it, and special tokens read as such; never with an EOS of the tokenizer's own.
std::vector<TokenId> encode_prompt(const Tokenizer& tokenizer, std::string_view text);

/// Tokens that both start with.
std::size_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b);

/// Prints text of a model as it is, but on a terminal without control characters, which could steer it.
void show(std::string_view text);

/// "31 tokens in 0.52 s, 59.6/s"
std::string rate(std::size_t tokens, double seconds);
std::string_view end_name(EndReason reason);

}  // namespace imago::cli
