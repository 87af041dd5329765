#pragma once

// What a conversion reads. Networks, bags of tensors and language models all become the same thing: a recipe, that is
// a list of named tensors with shape, type and role, whose ranges are read as float32 or as packed bytes
// (models::RecipeReader). Types are planned, tensors are written and reports are made from that list alone.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "imago/models.h"
#include "imago/network.h"
#include "models/recipe.h"
#include "models/tensor_layout.h"

namespace imago::convert {

/// Where the tensors of a network file go: into the layers of `network`, which is saved as a whole.
struct NetworkTarget {
  Network* network = nullptr;
  std::function<void(const std::string& path)> save;
};

struct Source {
  std::string path;
  FileForm format = FileForm::safetensors;
  models::ModelRecipe recipe;
  std::optional<NetworkTarget> network = std::nullopt;  ///< if the recipe is one of a network
  std::optional<models::Traits> traits = std::nullopt;  ///< of a language model
  models::Naming naming = {};                           ///< of the target, if the source is a language model
  /// A few weights that tell this model from others: a calibration must have the same.
  std::function<std::vector<float>()> sketch;
  std::shared_ptr<void> owner;  ///< what the recipe points into
};

/// Opens `path`, to be written in format `target`.
///
/// | source | gguf, safetensors | huggingface | checkpoint, entity |
/// |---|---|---|---|
/// | network | its layers by path | the language model that it is, else refused | its layers by path |
/// | decoder in an .entity file of the original | as a network with its ends | likewise | entity: as it is |
/// | tensors by name | models::make_recipe | models::make_recipe | layers made by import_network, with options.import |
///
/// What is left out is a note of the recipe. Throws IoError, FormatError, UnsupportedError where the table says
/// refused, and like read_traits and import_network.
Source open_source(const std::string& path, FileForm target, const ConvertOptions& options);

/// Plans the types of the target, writes it unless it is a dry run, and reports. REQUIRES: options.rounding is set if
/// there is a calibration.
ConvertReport convert_source(const Source& source, const std::string& out, const ConvertOptions& options);

}  // namespace imago::convert
