#pragma once

// Weights from a file into the forms that a decoder computes with.

#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "files/tensor_file.h"
#include "imago/device.h"
#include "imago/lm.h"
#include "kernels/matrix.h"
#include "lm/accelerator.h"
#include "lm/matrix_encoder.h"
#include "models/decoder_tensors.h"

namespace imago::lm {

/// A matrix in the type it will be computed in, before it is laid out.
struct PreparedMatrix {
  models::WeightSlice slice;
  Format format = DType::float32;
  std::optional<EncodedWeights> encoded;  ///< none: as the file has it
};

/// Makes run forms, one after the other, each in parallel. Every tensor is checked once for values that are not finite,
/// and its pages leave memory behind it.
class MatrixLoader {
 public:
  /// `total_bytes`: what progress counts up to. `encoder` is asked for every matrix; it may be empty.
  MatrixLoader(const LanguageModelOptions& options, const MatrixEncoder& encoder, std::uint64_t total_bytes)
      : options_(options), encoder_(encoder), total_bytes_(total_bytes) {}

  /// As the encoder packs it, or in the type that the options ask for where rows fit its blocks, or as stored; float32
  /// for what has no products as it is stored.
  PreparedMatrix prepare(const models::MatrixKey& key, const models::WeightSlice& slice);
  /// In its stored type: for what is small and decides much.
  PreparedMatrix prepare_as_stored(const models::WeightSlice& slice);
  /// The arithmetic that all of these types can do: matrices that share activations and work should agree.
  kernels::Arithmetic arithmetic(std::initializer_list<Format> formats) const;

  kernels::RunMatrix matrix(const PreparedMatrix& prepared, kernels::Arithmetic arithmetic);
  kernels::RunMatrix matrix(const PreparedMatrix& prepared) { return matrix(prepared, arithmetic({prepared.format})); }
  /// The matrix goes to the accelerator, and no run form is made of it here.
  void give(const models::MatrixKey& key, const PreparedMatrix& prepared, Accelerator& accelerator);
  std::vector<float> vector(const models::WeightSlice& slice);
  /// The slice in `format`, encoded piece by piece: float32 is needed for a piece only.
  EncodedWeights encode(const models::WeightSlice& slice, Format format);
  /// The type that `prepare` will choose; an encoder is not asked.
  Format planned_format(const models::WeightSlice& slice) const;

  /// The type that holds most weights of the matrices made so far.
  std::string main_type() const;
  std::uint64_t run_bytes() const noexcept { return run_bytes_; }

 private:
  Format stored_format(const models::WeightSlice& slice) const;
  void made(const PreparedMatrix& prepared);
  PreparedMatrix prepare_in(const models::WeightSlice& slice, Format format);
  void check(const files::StoredTensor& tensor);
  void finish(const models::WeightSlice& slice);

  const LanguageModelOptions& options_;
  const MatrixEncoder& encoder_;
  std::uint64_t total_bytes_, done_bytes_ = 0, run_bytes_ = 0;
  std::set<const files::StoredTensor*> checked_;
  std::map<std::string, std::uint64_t> weights_of_type_;
};

}  // namespace imago::lm
