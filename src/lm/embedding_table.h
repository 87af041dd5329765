#pragma once

// Rows of the token embedding, decoded when a token asks for them.

#include <cstddef>
#include <span>

#include "files/tensor_file.h"
#include "imago/device.h"
#include "imago/lm.h"
#include "lm/matrix_encoder.h"

namespace imago::lm {

/// A packed matrix that is read row by row: from the mapped file it came from, or from memory of its own.
class EmbeddingTable {
 public:
  EmbeddingTable() = default;
  /// Reads `tensor` where it lies: its bytes must outlive the table.
  explicit EmbeddingTable(const files::StoredTensor& tensor) : tensor_(tensor) {}
  /// With its own bytes.
  EmbeddingTable(std::size_t rows, std::size_t cols, EncodedWeights weights);

  /// Whether rows begin at whole bytes and blocks, so that they can be decoded one at a time.
  static bool fits(const files::StoredTensor& tensor) noexcept;
  /// Takes the bytes of the tensor over into memory of its own.
  void own_bytes();
  /// Bytes in memory of its own.
  std::size_t bytes() const noexcept { return own_.size(); }

  /// out is [ids.size()][cols]. REQUIRES: 0 <= id < rows for all of them.
  void look_up(std::span<const TokenId> ids, std::span<float> out) const;

 private:
  files::StoredTensor tensor_;
  Buffer own_;
};

}  // namespace imago::lm
