#pragma once

// The matrices of a model file, in whichever type they are asked for.

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "backend/runner.h"
#include "files/tensor_file.h"
#include "imago/format.h"
#include "lm/matrix_encoder.h"
#include "models/decoder_tensors.h"
#include "models/traits.h"

namespace imago::lm {

/// A matrix in the type it will be computed in, before it is laid out.
struct PreparedMatrix {
  models::WeightSlice slice;
  Format format = DType::float32;
  std::optional<EncodedWeights> encoded;  ///< none: as the file has it
  std::shared_ptr<const files::TensorFile> file = nullptr;

  /// The matrix where it is: in the file, or in memory of its own.
  kernels::PackedMatrix view() const;
};

/// The matrix as a table of rows: from the file itself if that has the type and its rows can be read one by one; else
/// from memory. A table that `stays` on the host has its own bytes if those of the file are memory too.
backend::RowTable table_of(PreparedMatrix prepared, bool stays);

/// Takes the pages that hold a slice off this process; returns how many bytes they are.
std::size_t release(const models::WeightSlice& slice);

/// An open model file. Matrices are prepared one after the other, each in parallel; every tensor is checked once for
/// values that are not finite.
class MatrixSource {
 public:
  /// Throws as DecoderTensors.
  MatrixSource(files::TensorFile file, const models::Traits& traits);

  const std::shared_ptr<const files::TensorFile>& file() const noexcept { return file_; }
  const models::DecoderTensors& tensors() const noexcept { return tensors_; }

  /// `type`, or what takes its place where rows do not fit its blocks (fitting_type), else the stored type; float32 for
  /// stored types that have no products.
  Format format_for(const models::WeightSlice& slice, std::optional<Format> type) const;
  /// Encoded piece by piece unless the file has that type: float32 is needed for a piece only.
  PreparedMatrix prepare(const models::WeightSlice& slice, Format format);
  /// In float32.
  std::vector<float> values(const models::WeightSlice& slice);

 private:
  void check(const files::StoredTensor& tensor);

  std::shared_ptr<const files::TensorFile> file_;
  models::DecoderTensors tensors_;
  std::set<const files::StoredTensor*> checked_;
};

}  // namespace imago::lm
