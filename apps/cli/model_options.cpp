#include "model_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <system_error>

#include "bundled_model.h"
#include "imago/error.h"
#include "output.h"
#include "progress.h"
#include "shared_options.h"

namespace imago::cli {

namespace {

std::size_t parse_gpu_layers(const std::string& text) {
  if (text.empty() || text == "all") return std::numeric_limits<std::size_t>::max();
  std::size_t layers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw UsageError(fmt::format("--gpu-layers is '{}'; it can be a number of layers or 'all'", printable(text)));
  }
  return layers;
}

/// All but the progress bar.
LanguageModelOptions load_options(const ModelOptions& options) {
  LanguageModelOptions load;
  if (!options.type.empty()) load.type = parse_format(options.type);
  load.fast = !options.exact;
  load.gpu_layers = parse_gpu_layers(options.gpu_layers);
  load.device = open_chosen(options.device);
  if (!options.gpu_layers.empty() && !load.device) {
    throw UsageError(
        "--gpu-layers says how much of a model goes to a GPU, and there is none chosen: add --device cuda");
  }
  return load;
}

}  // namespace

void add_model_argument(CLI::App& command, std::string& path, const std::string& what) {
  command.add_option("-m,--model,MODEL", path, what + " (default: what IMAGO_MODEL names, else the bundled model)")
      ->type_name("FILE");
}

void add_model(CLI::App& command, ModelOptions& options) {
  add_model_argument(command, options.path, "A GGUF file or a Hugging Face folder");
  add_model_settings(command, options);
}

void add_model_settings(CLI::App& command, ModelOptions& options) {
  command.add_option("--type", options.type, "Bring matrices into this type while loading (default: as stored)")
      ->type_name("TYPE");
  command.add_flag("--exact", options.exact,
                   "Activations in float32 throughout (default: int8 or bfloat16 where a type has such products)");
  add_device(command, options.device);
  command
      .add_option("--gpu-layers", options.gpu_layers,
                  "Layers that the GPU computes, the last ones; the CPU has the others (default: all)")
      ->type_name("N|all");
}

LanguageModel load_model(const ModelOptions& options) {
  LanguageModelOptions load = load_options(options);
  Progress progress(options.quiet);
  load.progress = [&](std::uint64_t done, std::uint64_t total) {
    progress.show(done, total, "loading", Progress::Unit::bytes);
  };
  const std::string path = model_path(options.path);
  if (!options.quiet && ::isatty(STDERR_FILENO) == 1 && path == bundled_model()) {
    fmt::print(stderr, "imago: this is the bundled model, which writes like its books and knows nothing\n");
  }
  return LanguageModel::load(path, load);
}

void warn_of_long_context(const LanguageModel& model, std::size_t context, bool quiet) {
  if (quiet || model.context() == 0 || context <= model.context()) return;
  fmt::print(stderr, "imago: warning: a context of {} tokens, and this model was made for {}; expect nonsense beyond\n",
             context, model.context());
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
      throw UsageError(fmt::format("--ids: number {} is missing or no number; write them as 1,2,3", ids.size() + 1));
    }
    ids.push_back(id);
    at = next;
    skip_spaces();
    if (at == end) return ids;
    if (*at != ',') throw UsageError(fmt::format("--ids: '{}' after number {}; write them as 1,2,3", *at, ids.size()));
    ++at;
  }
}

}  // namespace imago::cli
