#pragma once

// What the commands that run language models share.

#include <string>

#include "imago/lm.h"

namespace CLI {
class App;
}

namespace imago::cli {

struct ModelOptions {
  std::string path;
  std::string type;  ///< empty: as stored
  bool exact = false;
  std::string device;      ///< empty: the CPU
  std::string gpu_layers;  ///< "all" or a number; empty: all
  bool quiet = false;
};

/// `MODEL`, also as `-m`; without it, what IMAGO_MODEL names or the bundled model. `path` stays empty then: see
/// model_path.
void add_model_argument(CLI::App& command, std::string& path, const std::string& what);
/// `MODEL`, `--type`, `--exact`, `--device`, `--gpu-layers`. `--quiet` is the command's own.
void add_model(CLI::App& command, ModelOptions& options);
/// All but MODEL itself.
void add_model_settings(CLI::App& command, ModelOptions& options);

/// Loads it, or the model that stands in where none is named, with a bar. Throws UsageError or DeviceError for a type,
/// a device or a number of layers that cannot be, before anything is read, and as LanguageModel::load.
LanguageModel load_model(const ModelOptions& options);

/// Says, unless it is to be quiet, that `context` is more than the model was made for: no error, but no good text
/// either.
void warn_of_long_context(const LanguageModel& model, std::size_t context, bool quiet);

/// "1,2,3" as token ids; white space is allowed. Throws UsageError with the place for anything else.
std::vector<TokenId> parse_ids(const std::string& text);

}  // namespace imago::cli
