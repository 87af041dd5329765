#include "precision/layer_bytes.h"

#include "quant/scheme.h"

namespace imago::precision {

std::uint64_t layer_bytes(const Layer& layer) {
  if (!layer.weights) return 0;
  const Scheme scheme = layer.config.scheme();
  const ScaleLayout scales = scale_layout(scheme, layer.weights->rows(), layer.weights->cols());
  return packed_bytes(scheme.format, layer.weights->count()) + scales.count * sizeof(float);
}

}  // namespace imago::precision
