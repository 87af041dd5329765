#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "imago/files.h"
#include "imago/network.h"
#include "imago/tensor.h"

namespace imago {

/// A tensor of a model file, without its values.
struct TensorSummary {
  std::string name;  ///< of the weights of a layer: its path, `layers.0.sequential_layers.1`
  std::string type;  ///< as the file's form spells it; a dtype in checkpoints
  Shape shape;
  std::uint64_t bytes = 0;  ///< scales included where they belong to the tensor
};

/// What a model file says about itself.
struct ModelSummary {
  FileForm form = FileForm::checkpoint;
  std::string architecture;      ///< of a language model, as the file names it; empty for other files
  std::uint64_t parameters = 0;  ///< of an architecture: the weights that its layers would have
  std::uint64_t bytes = 0;       ///< of all tensors, without the rest of the file
  std::uint64_t file_bytes = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  ///< in the order of the file; values are JSON texts
  std::vector<TensorSummary> tensors;                         ///< in the order of the file

  /// 8 · bytes / parameters; 0 without weights in the file.
  double bits_per_weight() const noexcept;
};

/// Looks into a file of any form that imago knows. Sizes are checked against each other and against the file as a
/// loader would; values are not looked at, and nothing is decoded. Throws IoError, FormatError; UnsupportedError for
/// forms that this build does not read.
ModelSummary inspect_model(const std::string& path);

/// A layer under the name that files give it: "layers.0.sequential_layers.1".
struct NamedLayer {
  std::string path;
  const Layer* layer = nullptr;
};
/// Every layer of the grid and every layer inside it, those of meta networks too: a layer, then what is inside it,
/// depth first. Valid until layers are added or removed.
std::vector<NamedLayer> named_layers(const Network& network);

/// The gradients of every layer with weights, as `Network::backward` summed them: path and values in the layout of the
/// master. Layers that had no part in it have zeros; meta networks are not trained and left out.
std::vector<std::pair<std::string, std::vector<float>>> named_gradients(Network& network);

}  // namespace imago
