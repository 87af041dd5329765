#pragma once

// Networks of layers out of files that are tensors by name (spec/checkpoint.md §8.2, §8.3).

#include <string>

#include "files/tensor_file.h"
#include "imago/files.h"

namespace imago::checkpoint {

/// By the form of the file: a decoder from a Hugging Face folder or a GGUF file, guessed layers from a safetensors
/// file.
ImportedNetwork import_network(const files::TensorFile& file, const ImportOptions& options);

// The two of them. REQUIRES: a file of that form.
ImportedNetwork import_decoder(const files::TensorFile& file, const ImportOptions& options);
ImportedNetwork import_guessed(const files::TensorFile& file, const ImportOptions& options);

/// All elements as float32.
std::vector<float> read_values(const files::StoredTensor& tensor);

/// The `transformer` section of an `.entity` file. REQUIRES: a decoder.
std::string transformer_json(const ImportedNetwork& imported);

}  // namespace imago::checkpoint
