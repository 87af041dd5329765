#include "precision/sweep_encoder.h"

#include <vector>

#include "guided/encode_matrix.h"
#include "models/matrix_names.h"

namespace imago::precision {

namespace {

/// As products read them: a single scale becomes one per row, all equal.
lm::EncodedWeights for_products(guided::EncodedMatrix matrix, Format format, std::size_t rows, std::size_t cols) {
  lm::EncodedWeights encoded{.format = format, .packed = host_device()->allocate(matrix.codes.size())};
  host_device()->upload(matrix.codes, encoded.packed, 0);
  encoded.scales = std::move(matrix.scales);
  encoded.scale_group = matrix.scale_group;
  if (encoded.scales.size() == 1) {
    encoded.scales.assign(rows, encoded.scales.front());
    encoded.scale_group = cols;
  }
  return encoded;
}

}  // namespace

PlannedEncoder::PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan,
                               const guided::Calibration& calibration, Rounding rounding)
    : traits_(traits), calibration_(calibration), rounding_(rounding) {
  for (const convert::PlannedTensor& planned : plan) {
    if (planned.copied || !planned.type.format) continue;
    schemes_.emplace(planned.recipe->name, planned.type.scaled ? planned.scheme : Scheme(*planned.type.format));
  }
}

std::optional<lm::EncodedWeights> PlannedEncoder::encode(const models::MatrixKey& key, std::span<const float> weights,
                                                         std::size_t rows, std::size_t cols) {
  const std::string name = models::matrix_name(traits_, key.role, key.block);
  const auto found = schemes_.find(name);
  if (found == schemes_.end()) return std::nullopt;
  const Scheme& scheme = found->second;
  const guided::InputStatistics* known = calibration_.find(name, key.expert);
  if (known != nullptr) known = &calibration_.require(name, key.expert, cols);
  guided::EncodedMatrix matrix =
      guided::encode_matrix(weights, rows, cols, scheme, known == nullptr ? Rounding::nearest : rounding_, known);
  change_.add(weights, guided::decode_matrix(matrix, scheme, rows, cols));
  return for_products(std::move(matrix), scheme.format, rows, cols);
}

}  // namespace imago::precision
