#pragma once

// The weight matrices of a decoder under the names that plans use, and their weights.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "models/decoder_tensors.h"
#include "models/tensor_layout.h"
#include "models/traits.h"

namespace imago::precision {

/// A unit of planning: a matrix, or several that a GGUF file keeps in one tensor (experts, fused projections).
struct DecoderMatrix {
  std::string name;
  std::vector<models::MatrixKey> parts;
  std::size_t cols = 0;
  std::uint64_t weights = 0;    ///< in all parts
  std::size_t first_block = 0;  ///< the first block that reads it; the number of blocks for an untied output
};

/// Reads a model file; weights are decoded on request.
class DecoderMatrices {
 public:
  /// Throws IoError, FormatError, UnsupportedError.
  explicit DecoderMatrices(const std::string& path);

  const files::TensorFile& file() const noexcept { return file_; }
  const models::Traits& traits() const noexcept { return traits_; }
  /// In the order of computation, without routers, which keep their type.
  const std::vector<DecoderMatrix>& all() const noexcept { return matrices_; }
  /// Number of weights in all other tensors: vectors, routers, position embeddings.
  std::uint64_t other_weights() const noexcept { return other_weights_; }
  /// Bytes of the products of all pairs of columns in a calibration of this model.
  std::uint64_t product_bytes() const noexcept;
  /// [rows][cols]
  std::vector<float> weights(const models::MatrixKey& key) const;

 private:
  files::TensorFile file_;
  models::Traits traits_;
  models::DecoderTensors tensors_;
  std::vector<DecoderMatrix> matrices_;
  std::uint64_t other_weights_ = 0;
};

}  // namespace imago::precision
