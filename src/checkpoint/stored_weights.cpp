// Weights between files and stores (spec/checkpoint.md §4).

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "checkpoint/checkpoint.h"
#include "imago/codec.h"
#include "imago/error.h"

namespace imago::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little, "weights are copied to and from files as they lie");

/// The original's own meaning of fp4 codes, for comparisons with its files; the store holds the values, not the codes.
std::vector<float> decode_legacy_fp4(std::span<const std::byte> bytes, std::size_t count, float scale) {
  std::vector<float> values(count);
  const float factor = scale == 0 ? 1.0f : scale;
  for (std::size_t i = 0; i < count; ++i) {
    const unsigned pair = std::to_integer<unsigned>(bytes[i / 2]);
    const auto code = static_cast<std::uint8_t>(i % 2 == 0 ? pair >> 4 : pair & 15);
    values[i] = from_fp4({code}, Fp4Table::legacy) * factor;
  }
  return values;
}

void check_scale(float scale) {
  if (!(scale >= 0) || !std::isfinite(scale)) {
    throw UsageError(fmt::format("a scale must be finite and not negative, not {}", scale));
  }
}

/// How the weights of a layer lie in a file.
struct Layout {
  WeightShape shape;
  bool as_float = false;  // float32, whatever the dtype of the layer
};

Layout check_sizes(const LayerConfig& config, std::size_t bytes, bool native) {
  const WeightShape shape = weight_shape(config);
  const std::size_t count = checked_mul(shape.rows, shape.cols, "the number of weights");
  const std::size_t float_bytes = checked_mul(count, sizeof(float), "the size of the weights");
  const bool wide = config.dtype == DType::float16 || config.dtype == DType::bfloat16;
  // An older revision stored the 16-bit floats as float32: told by the length.
  const bool as_float = !native || (wide && bytes == float_bytes && count != 0);
  const std::size_t wanted = as_float ? float_bytes : packed_bytes(config.dtype, count);
  if (bytes != wanted || count == 0) {
    throw ShapeError(fmt::format("{} bytes for {} weights in {}, which take {}", bytes, count,
                                 as_float ? "float32" : name(config.dtype), wanted));
  }
  return {shape, as_float};
}

}  // namespace

TensorSummary measure_weights(const LayerConfig& config, const StoredSizes& stored, std::string path) {
  const Layout layout = check_sizes(config, stored.bytes, stored.native);
  std::size_t scales = 0;
  const Scheme scheme = config.scheme();
  if (stored.native) {
    if (scheme.granularity == Granularity::row) scales = layout.shape.rows;
    if (scheme.granularity == Granularity::group) {
      const auto group = static_cast<std::size_t>(scheme.group);
      if (scheme.group <= 0 || layout.shape.cols % group != 0) {
        throw ShapeError(fmt::format("groups of {} in rows of {}", scheme.group, layout.shape.cols));
      }
      scales = layout.shape.count() / group;
    }
    if (stored.scales != scales) throw ShapeError(fmt::format("{} scales, not {}", stored.scales, scales));
  }
  TensorSummary summary;
  summary.name = std::move(path);
  summary.type = layout.as_float ? name(DType::float32) : name(config.dtype);
  summary.shape = layout.shape.rows == 1 ? Shape{layout.shape.cols} : Shape{layout.shape.rows, layout.shape.cols};
  summary.bytes = stored.bytes + scales * sizeof(float);
  return summary;
}

void install_weights(Layer& layer, const StoredWeights& stored, Fp4Table fp4) {
  const LayerConfig& config = layer.config;
  check_scale(stored.scale);
  const auto [shape, as_float] = check_sizes(config, stored.bytes.size(), stored.native);

  WeightStore store(shape.rows, shape.cols);
  const Scheme scheme = config.scheme();  // types without scales have none per row either, whatever the setting says
  const bool single = scheme.granularity == Granularity::tensor;
  if (single != stored.scales.empty() && stored.native) {
    throw UsageError(single ? "scales are given, but this layer has none per row or group"
                            : "scales per row or group are missing");
  }
  if (as_float) {
    std::memcpy(store.edit_master().data(), stored.bytes.data(), stored.bytes.size());
    if (stored.native) store.set_scale(config.dtype, stored.scale);
  } else if (config.dtype == DType::fp4 && fp4 == Fp4Table::legacy && single) {
    store.set_master(decode_legacy_fp4(stored.bytes, shape.count(), stored.scale));
  } else if (single) {
    store.set_loaded(config.dtype, stored.bytes, stored.scale);
  } else {
    store.set_loaded(scheme, stored.bytes, stored.scales);
  }
  layer.weights = std::move(store);
}

EmittedWeights emit_weights(const Layer& layer) {
  const WeightStore& store = *layer.weights;
  EmittedWeights emitted;
  const Scheme scheme = layer.config.scheme();
  emitted.version = store.morph(scheme);
  emitted.bytes = emitted.version ? emitted.version->codes() : std::as_bytes(store.master());
  if (scheme.granularity == Granularity::tensor) {
    emitted.scale = store.scale(layer.config.dtype);
  } else {
    emitted.scales = emitted.version->scales();
  }
  return emitted;
}

}  // namespace imago::checkpoint
