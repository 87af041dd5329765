#pragma once

// Networks in files of named tensors, safetensors and GGUF (docs/formats/network_tensors.md). The metadata entry
// `imago.network` is the checkpoint without its weights; each layer with weights has a tensor named after its path.
// Types that the file format lacks are packed as files/packed_safetensors.h says.
//
// | content | rule |
// |---|---|
// | `imago.network` | a checkpoint text; its weights are ignored; `scale` is kept for types without one in the file |
// | tensor | named after a layer of the network that has weights; no other tensors |
// | type | that of the layer; a block format instead makes the layer one of that |
// | shape | as many elements as the layer has weights; in block formats, as its matrices have |
// | tensor NAME.biases | float32, of layers in block formats that have vectors |

#include <string>
#include <string_view>

#include "files/tensor_file.h"
#include "imago/files.h"
#include "imago/network.h"

namespace imago::checkpoint {

inline constexpr std::string_view kNetworkKey = "imago.network";

/// Whether the file is a safetensors or GGUF file with a network in it.
bool holds_network(const files::TensorFile& file);

/// REQUIRES: holds_network. Throws FormatError.
Network read_tensors(const files::TensorFile& file, Fp4Table fp4);
/// The network without weights.
Network read_tensors_topology(const files::TensorFile& file);

/// Writes GGUF if `path` ends with `.gguf`, else safetensors. The file appears whole or not at all. Throws IoError.
void save_tensors(const std::string& path, const Network& network);

}  // namespace imago::checkpoint
