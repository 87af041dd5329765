#pragma once

// Networks of layers: into another type, another form of network file, or a bag of tensors.

#include <string>

#include "checkpoint/entity.h"
#include "files/tensor_file.h"
#include "imago/models.h"

namespace imago::convert {

/// Writes `network`, read from `in`, as `out` of form `to`. All layers with weights take the type, as morph_network
/// does it; patterns are looked for in their paths ("layers.0.sequential_layers.1"). In GGUF and safetensors a network
/// is a bag of `layer_INDEX.weights`, float32 where no type is asked for; layers inside others are left out, with a
/// note. What a decoder in an `.entity` file has beside its layers goes into another `.entity` file; other forms leave
/// it out, with a note. Throws FormatError for weights that are not finite, UnsupportedError for a Hugging Face folder,
/// and for GGUF if it is a decoder: layers do not say all that such a model needs.
ConvertReport convert_network(checkpoint::Entity source, const std::string& in, const std::string& out, FileForm to,
                              const ConvertOptions& options);

/// Makes layers of the tensors of `file` (checkpoint/network_import.h) and writes them as `out`, a checkpoint or an
/// `.entity` file. Types as above. Throws as import_network, and FormatError for weights that are not finite.
ConvertReport convert_to_network(const files::TensorFile& file, const std::string& out, const ConvertOptions& options);

}  // namespace imago::convert
