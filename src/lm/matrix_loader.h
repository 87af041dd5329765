#pragma once

// Weights from a file into the forms that a decoder computes with.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/tensor_file.h"
#include "imago/device.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "models/decoder_tensors.h"

namespace imago::lm {

/// Weights packed anew, in memory of their own.
struct EncodedWeights {
  Format format = DType::float32;
  Buffer packed;
  std::vector<float> row_scales;  ///< empty for types without scales
};

/// Makes run forms, one after the other, each in parallel. Every tensor is checked once for values that are not finite,
/// and its pages leave memory behind it.
class MatrixLoader {
 public:
  /// `total_bytes`: what progress counts up to.
  MatrixLoader(const LanguageModelOptions& options, std::uint64_t total_bytes)
      : options_(options), total_bytes_(total_bytes) {}

  /// The type that a slice is computed in: as stored, or as the options ask where rows fit its blocks; float32 for what
  /// has no products as it is stored.
  Format run_format(const models::WeightSlice& slice) const;
  /// The same, whatever the options ask.
  Format stored_format(const models::WeightSlice& slice) const;
  /// The arithmetic that all of these types can do: matrices that share activations and work should agree.
  kernels::Arithmetic arithmetic(std::initializer_list<Format> formats) const;

  kernels::RunMatrix matrix(const models::WeightSlice& slice, kernels::Arithmetic arithmetic) {
    return make_matrix(slice, run_format(slice), arithmetic);
  }
  kernels::RunMatrix matrix(const models::WeightSlice& slice) { return matrix(slice, arithmetic({run_format(slice)})); }
  /// In its stored type: for what is small and decides much.
  kernels::RunMatrix matrix_as_stored(const models::WeightSlice& slice) {
    return make_matrix(slice, stored_format(slice), arithmetic({stored_format(slice)}));
  }
  std::vector<float> vector(const models::WeightSlice& slice);
  /// The slice in `format`, encoded piece by piece: float32 is needed for a piece only.
  EncodedWeights encode(const models::WeightSlice& slice, Format format);

  /// The type that holds most weights of the matrices made so far.
  std::string main_type() const;
  std::uint64_t run_bytes() const noexcept { return run_bytes_; }

 private:
  kernels::RunMatrix make_matrix(const models::WeightSlice& slice, Format format, kernels::Arithmetic arithmetic);
  void check(const formats::StoredTensor& tensor);
  void finish(const models::WeightSlice& slice);

  const LanguageModelOptions& options_;
  std::uint64_t total_bytes_, done_bytes_ = 0, run_bytes_ = 0;
  std::set<const formats::StoredTensor*> checked_;
  std::map<std::string, std::uint64_t> weights_of_type_;
};

}  // namespace imago::lm
