#pragma once

// Networks of layers out of files that are tensors by name.

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "files/hugging_face.h"
#include "files/tensor_file.h"
#include "imago/files.h"
#include "imago/layer.h"
#include "models/traits.h"

namespace imago::checkpoint {

/// By the content of the file: a decoder from a Hugging Face folder or a GGUF file, the network that it holds, or
/// layers guessed from its tensors.
ImportedNetwork import_network(const files::TensorFile& file, const ImportOptions& options);

// The two of them. REQUIRES: a file of that form.
ImportedNetwork import_decoder(const files::TensorFile& file, const ImportOptions& options);
ImportedNetwork import_guessed(const files::TensorFile& file, const ImportOptions& options);

// What config.json says about a decoder that is to become a network of layers.

/// Every count in config.json is at most this; the tensors decide in the end.
inline constexpr std::size_t kMaxImportSize = 1 << 24;

struct ImportSizes {
  std::string id = "decoder";  ///< `model_type`, where imago knows it
  std::size_t blocks = 0, width = 0, heads = 0, kv_heads = 0, head_values = 0, inner = 0;
  std::size_t context = 0;  ///< 0: not known
  double eps = 1e-6, rope_base = 10000;
  Activation activation = Activation::silu;
  bool own_head = false;            ///< the embeddings do not serve as one
  bool post_norms = false;          ///< norms after attention and SwiGLU instead of before
  std::vector<bool> rope_in_block;  ///< empty: everywhere

  std::size_t queries() const { return heads * head_values; }
  std::size_t keys() const { return kv_heads * head_values; }
};

/// None for a model_type that imago does not know, and for a config.json that says less than a language model needs;
/// the spec of the original takes both (what it does not state has a default). Throws like models::read_traits.
std::optional<models::Traits> known_traits(const files::JsonFile& config);

/// From a config.json; `path` is the model that it is of. A num_hidden_layers that is missing leaves 0 blocks. Throws
/// FormatError for what is wrong, UnsupportedError, naming it, for what layers of a network cannot compute.
ImportSizes read_import_sizes(const files::JsonFile& config, const std::string& path);

}  // namespace imago::checkpoint
