#pragma once

// Language models in files of any form. A network of layers may be one too (docs/model-networks.md), and language
// models do not see networks: checkpoint, above, implements what is declared here.

#include <optional>
#include <string>

#include "files/hugging_face.h"
#include "files/tensor_file.h"

namespace imago::models {

/// A folder, GGUF or safetensors file as it is; a network that is a language model as the folder it would be. `eager`
/// copies the file to memory at once. Throws IoError, FormatError; UnsupportedError, saying what stands in the way, for
/// a network that is no language model.
files::TensorFile open_model(const std::string& path, bool eager = false);

/// The tokenizer that a network was saved with, as a folder without weights; none if the file holds no network. Reads
/// no weights. Throws IoError, FormatError, and UnsupportedError for a network without a tokenizer.
std::optional<files::HuggingFaceFolder> stored_tokenizer(const std::string& path);

}  // namespace imago::models
