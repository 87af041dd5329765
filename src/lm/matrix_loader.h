#pragma once

// Weights from a file to the runners that compute with them.

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "backend/runner.h"
#include "files/tensor_file.h"
#include "imago/device.h"
#include "imago/lm.h"
#include "lm/matrix_encoder.h"
#include "models/decoder_tensors.h"

namespace imago::lm {

/// A matrix in the type it will be computed in, before it is laid out.
struct PreparedMatrix {
  models::WeightSlice slice;
  Format format = DType::float32;
  std::optional<EncodedWeights> encoded;  ///< none: as the file has it
};

/// The matrix where it is: in the file, or in memory of its own.
kernels::PackedMatrix packed_of(const PreparedMatrix& prepared);

/// Prepares matrices one after the other, each in parallel. Every tensor is checked once for values that are not
/// finite, and its pages leave memory once it has been read.
class MatrixLoader {
 public:
  /// `total_bytes`: what progress counts up to. `encoder` is asked for every matrix; it may be empty.
  MatrixLoader(const LanguageModelOptions& options, const MatrixEncoder& encoder, std::uint64_t total_bytes)
      : options_(options), encoder_(encoder), total_bytes_(total_bytes) {}

  /// As the encoder packs it, or in the type that the options ask for where rows fit its blocks, or as stored; float32
  /// for stored types that have no products.
  PreparedMatrix prepare(const models::MatrixKey& key, const models::WeightSlice& slice);
  /// In its stored type: for what is small and decides much.
  PreparedMatrix prepare_as_stored(const models::WeightSlice& slice);
  /// Gives a runner matrices that one product reads together.
  void give(std::span<const backend::WeightKey> keys, std::span<const PreparedMatrix> prepared,
            backend::Runner& runner);
  std::vector<float> vector(const models::WeightSlice& slice);
  /// The slice in `format`, encoded piece by piece: float32 is needed for a piece only.
  EncodedWeights encode(const models::WeightSlice& slice, Format format);
  /// Bytes that what `prepare` will choose takes on a GPU; an encoder is not asked.
  std::uint64_t planned_device_bytes(const models::WeightSlice& slice) const;

  /// The type that holds most weights of the matrices given so far.
  std::string main_type() const;

 private:
  Format stored_format(const models::WeightSlice& slice) const;
  Format planned_format(const models::WeightSlice& slice) const;
  PreparedMatrix prepare_in(const models::WeightSlice& slice, Format format);
  void check(const files::StoredTensor& tensor);
  void finish(const models::WeightSlice& slice);

  const LanguageModelOptions& options_;
  const MatrixEncoder& encoder_;
  std::uint64_t total_bytes_, done_bytes_ = 0;
  std::set<const files::StoredTensor*> checked_;
  std::map<std::string, std::uint64_t> weights_of_type_;
};

}  // namespace imago::lm
