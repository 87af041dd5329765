// imago synth: a language model with random weights, for comparing the speed of programs that read GGUF.

#include <algorithm>

#include "command.h"
#include "imago/models.h"
#include "model_shapes.h"

namespace imago::cli {

namespace {

struct SynthCommand {
  std::string output;
  const ModelShape* like = kModelShapes;
  RandomModelOptions model;
  /// What differs from the model that it is like, by the key of config.json.
  std::map<std::string, std::size_t> sizes;
  int threads = 0;
  bool untied = false;
  bool quiet = false;
};

const ModelShape* shape_named(const std::string& name) {
  const auto* const found = std::ranges::find(kModelShapes, name, &ModelShape::name);
  if (found != std::end(kModelShapes)) return found;
  std::vector<std::string> known;
  for (const ModelShape& shape : kModelShapes) known.emplace_back(shape.name);
  throw UsageError(fmt::format("--like: unknown model '{}'; known models are {}", name, join(known, ", ")));
}

/// The first entries of a list by blocks, repeated if there are more blocks.
void adapt_lists(Json& config, std::size_t blocks) {
  for (auto& [key, value] : config.items()) {
    if (!value.is_array()) continue;
    const Json whole = value;
    value = Json::array();
    for (std::size_t i = 0; i < blocks; ++i) value.push_back(whole[i % whole.size()]);
  }
}

Json config_of(const SynthCommand& options) {
  Json config = Json::parse(options.like->config);
  for (const auto& [key, value] : options.sizes) {
    if (!config.contains(key)) {
      throw UsageError(fmt::format("--like {}: its config.json has no '{}' to change", options.like->name, key));
    }
    config[key] = value;
  }
  adapt_lists(config, config.at("num_hidden_layers"));
  if (options.untied) config["tie_word_embeddings"] = false;
  return config;
}

void check(const Json& config, const RandomModelOptions& model) {
  const auto size = [&](const char* key) { return config.value(key, std::size_t{0}); };
  const std::size_t width = size("hidden_size"), heads = size("num_attention_heads");
  const std::size_t kv_heads = size("num_key_value_heads");
  if (!config.contains("head_dim") && heads != 0 && (width % heads != 0 || width / heads % 2 != 0)) {
    throw UsageError(fmt::format("--heads: {} heads do not divide a width of {} into even parts", heads, width));
  }
  if (kv_heads != 0 && heads % kv_heads != 0) {
    throw UsageError(fmt::format("--kv-heads: {} heads cannot share {}", heads, kv_heads));
  }
  for (const Format format : {model.type, model.ends.value_or(model.type)}) {
    if (format.has_scales()) {
      throw UsageError(fmt::format("--type: GGUF has no {} with scales; use a float or a block format", format.name()));
    }
  }
}

void synth(SynthCommand& options) {
  const Json config = config_of(options);
  check(config, options.model);
  set_thread_count(options.threads);
  Progress progress(options.quiet);
  options.model.progress = std::ref(progress);
  write_random_model(config.dump(), options.output, options.model);
}

std::string footer() {
  std::string text = "Models to be like, each with its published sizes:\n";
  for (const ModelShape& shape : kModelShapes) text += fmt::format("  {:<18}{}\n", shape.name, shape.about);
  return text +
         "Examples:\n  imago synth llama-1b.gguf --type q4_k\n"
         "  imago synth moe.gguf --like qwen3_5_moe --blocks 8 --type q4_k\n"
         "  imago synth small.gguf --type q8_0 --width 512 --blocks 4 --feed-forward 1536 --heads 8 --kv-heads 4";
}

}  // namespace

Command add_synth(CLI::App& program) {
  CLI::App* command = program.add_subcommand("synth", "Write a language model with random weights, to measure speed");
  const auto options = std::make_shared<SynthCommand>();
  command->add_option("OUT", options->output, "GGUF file to write")->required();
  add_parsed(*command, "--like", options->like, shape_named, "MODEL",
             "A model of the list below, whose sizes it takes (default: llama)");
  add_parsed(*command, "--type", options->model.type, parse_format, "TYPE", "Type of the matrices (default: q4_k)");
  add_parsed(*command, "--output-type", options->model.ends, parse_format, "TYPE",
             "Type of embedding and output (default: that of --type)");
  const auto size = [&](const char* name, const char* key, const char* what, std::size_t most) {
    command
        ->add_option_function<std::size_t>(
            name, [options, key](std::size_t value) { options->sizes[key] = value; },
            fmt::format("{} (default: that of --like)", what))
        ->type_name("N")
        ->check(CLI::Range(std::size_t{1}, most));
  };
  size("--width", "hidden_size", "Width of the model", 65536);
  size("--blocks", "num_hidden_layers", "Blocks", 1024);
  size("--feed-forward", "intermediate_size", "Width of the feed-forward layers", 1 << 20);
  size("--heads", "num_attention_heads", "Query heads", 1024);
  size("--kv-heads", "num_key_value_heads", "Key and value heads", 1024);
  size("--vocabulary", "vocab_size", "Size of the vocabulary", 1 << 20);
  size("--ctx", "max_position_embeddings", "Context length", 1 << 24);
  command->add_flag("--untied", options->untied, "A separate output matrix (default: as --like has it)");
  add_seed(*command, options->model.seed, "Of the weights (default: 1)");
  add_threads(*command, options->threads);
  add_quiet(*command, options->quiet);
  command->footer(footer());
  return {command, [options] { synth(*options); }};
}

}  // namespace imago::cli
