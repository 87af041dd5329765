#pragma once

// What the commands for language models share, and what `bench` and `demo` need of them: builds without language models
// (IMAGO_LM=OFF) have language_absent.cpp instead.

#include "command.h"
#include "imago/engine.h"
#include "imago/lm.h"

namespace imago::cli {

struct ModelOptions {
  std::string path, tokenizer;  ///< empty: the default model; that of the model
  std::optional<Format> type;   ///< none: as stored
  bool fast = true;
  std::string device;                     ///< empty: the CPU
  std::optional<std::size_t> gpu_layers;  ///< none: all, and the option was not given
  bool quiet = false;
};

/// `MODEL`, also as `-m`. If it is not given, `path` stays empty and model_path finds the default.
void add_model_argument(CLI::App& command, std::string& path, const std::string& what);
/// `MODEL`, `--tokenizer`, `--type`, `--fast` and `--exact`, `--device`, `--gpu-layers`, but not `--quiet`.
void add_model(CLI::App& command, ModelOptions& options);
/// The same without MODEL.
void add_model_settings(CLI::App& command, ModelOptions& options);

/// Loads the model, or the default model, with a progress bar. Throws like LanguageModel::load, and UsageError or
/// DeviceError for an invalid device before anything is read.
LanguageModel load_model(const ModelOptions& options);

/// The tokens of a text, by the tokenizer at `path`. Throws like Tokenizer::load.
std::vector<TokenId> encode_text(const std::string& path, std::string_view text);

/// "1,2,3" as token ids; white space is allowed. Throws UsageError with the position of anything else.
std::vector<TokenId> parse_ids(const std::string& text);

/// Warns, unless `quiet`, that the model was not trained for so long a context.
void warn_of_long_context(const LanguageModel& model, std::size_t context, bool quiet);

/// What `run` and `chat` share.
struct GenerationOptions {
  ModelOptions model;
  GenerateOptions generate;  ///< except max_tokens and prompt_progress
  SequenceOptions sequence;
  long long predict = 256;  ///< -1: until the model stops or the context is full
  int threads = 0;
};

/// All options except the prompt; `predict` is the default of -n.
void add_generation(CLI::App& command, GenerationOptions& options, long long predict);

/// Throws UsageError for values out of range, before any model is loaded.
GenerateOptions generate_options(const GenerationOptions& options);

/// For one request at a time.
EngineOptions engine_options(const GenerationOptions& options);

/// Prints generated text; on a terminal without control characters, which could manipulate it.
void show(std::string_view text);

/// "31 tokens in 0.52 s, 59.6/s"
std::string rate(std::size_t tokens, double seconds);

/// imago bench MODEL
struct ModelBench {
  ModelOptions model;
  ModelBenchOptions bench;
};

void add_model_bench(CLI::App& command, ModelBench& options);
/// Measures and prints. REQUIRES: the number of threads is set.
void bench_language_model(const ModelBench& options, bool json);

/// A language model at one precision in `imago demo`.
struct DemoModel {
  std::string type;
  std::uint64_t parameters = 0;
  std::uint64_t bytes = 0;           ///< in memory
  DivergenceReport divergence = {};  ///< from the model as stored, on a text that it generated
  double tokens_per_second = 0;      ///< while it generated `text`
  std::string text = {};             ///< greedy continuation of the prompt
};

constexpr const char* kDemoPrompt = "Up betimes, and to the office, where";

/// The model as stored and with fewer and fewer bits; empty in a build without language models. Throws like
/// LanguageModel::load.
std::vector<DemoModel> measure_demo_models(const std::string& path, bool quiet);

}  // namespace imago::cli
