#include "precision/sweep_encoder.h"

#include <utility>
#include <vector>

#include "imago/codec.h"
#include "models/matrix_names.h"
#include "weights/calibrate.h"

namespace imago::precision {

lm::EncodedWeights encode_weights(std::span<const float> weights, std::size_t rows, std::size_t cols,
                                  const Scheme& scheme) {
  const Format format = scheme.format;
  lm::EncodedWeights encoded{.format = format, .packed = host_device()->allocate(packed_bytes(format, weights.size()))};
  if (format.is_block()) {
    encode(format.block(), weights, encoded.packed.host());
    return encoded;
  }
  if (is_scaled(format.dtype())) {
    const ScaleLayout layout = scale_layout(scheme, rows, cols);
    encoded.scales = derive_scales(scheme, layout, weights);
    encoded.scale_group = layout.group;
    if (layout.count == 1) {
      encoded.scales.assign(rows, encoded.scales.front());
      encoded.scale_group = cols;
    }
  }
  encode(format.dtype(), weights, encoded.view_scales(), encoded.packed.host());
  return encoded;
}

PlannedEncoder::PlannedEncoder(const models::Traits& traits, std::span<const convert::PlannedTensor> plan)
    : traits_(traits) {
  for (const convert::PlannedTensor& planned : plan) {
    if (planned.copied || !planned.type.format) continue;
    schemes_.emplace(planned.recipe->name, planned.type.scaled ? planned.scheme : Scheme(*planned.type.format));
  }
}

std::optional<lm::EncodedWeights> PlannedEncoder::encode(const models::MatrixKey& key, std::span<const float> weights,
                                                         std::size_t rows, std::size_t cols) {
  const auto found = schemes_.find(models::matrix_name(traits_, key.role, key.block));
  if (found == schemes_.end()) return std::nullopt;
  lm::EncodedWeights encoded = encode_weights(weights, rows, cols, found->second);
  std::vector<float> decoded(weights.size());
  const std::span<const std::byte> packed = std::as_const(encoded.packed).host();
  if (encoded.format.is_block()) {
    decode(encoded.format.block(), packed, decoded);
  } else {
    decode(encoded.format.dtype(), packed, encoded.view_scales(), decoded);
  }
  change_.add(weights, decoded);
  return encoded;
}

}  // namespace imago::precision
