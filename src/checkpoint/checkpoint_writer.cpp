// Weights between files and stores.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/checked.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
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

namespace {

/// `seq_length` 1 is what the original fills in everywhere; only these types read it.
bool reads_seq_length(LayerType type) {
  return type == LayerType::multi_head_attention || type == LayerType::rnn || type == LayerType::lstm;
}

void write_rule(JsonWriter& json, const MetaRule& rule) {
  json.begin_object();
  for (const RuleField& field : rule_fields()) {
    json.key(field.key);
    std::visit([&](auto member) { json.value(rule.*member); }, field.place);
  }
  json.end_object();
}

class LayerWriter {
 public:
  LayerWriter(JsonWriter& json, LayerContent content) : json_(json), content_(content) {}

  void write(const Layer& layer, const Coordinates& at) {
    json_.begin_object();
    const EmittedWeights weights =
        layer.weights && content_ == LayerContent::all ? emit_weights(layer) : EmittedWeights{};
    for (const LayerField& field : layer_fields()) {
      const Scope scope{*this, json_, layer, at, weights, field.key};
      std::visit(scope, field.place);
    }
    json_.end_object();
  }

 private:
  /// One field of one layer: an overload per kind of place. Fields that are zero, false or empty are left out, except
  /// the coordinates and names at the top.
  struct Scope {
    LayerWriter& writer;
    JsonWriter& json;
    const Layer& layer;
    const Coordinates& at;
    const EmittedWeights& weights;
    std::string_view key;

    template <class T>
    void put(const T& value) const {
      json.key(key);
      json.value(value);
    }
    template <class T>
    void put_if(const T& value) const {
      if (value != T{}) put(value);
    }
    template <class Range, class Body>
    void put_list(const Range& range, Body body) const {
      if (range.empty()) return;
      json.key(key);
      json.begin_array();
      for (const auto& element : range) body(element);
      json.end_array();
    }
    void put_floats(std::span<const float> values) const {
      if (values.empty()) return;
      json.key(key);
      json.base64(std::as_bytes(values));
    }

    void operator()(int Coordinates::*member) const { put(at.*member); }
    void operator()(LayerType LayerConfig::*member) const { put(name(layer.config.*member)); }
    void operator()(Activation LayerConfig::*member) const { put(name(layer.config.*member)); }
    void operator()(DType LayerConfig::*member) const { put(name(layer.config.*member)); }
    void operator()(SoftmaxType LayerConfig::*member) const { put(name(layer.config.*member)); }
    void operator()(Granularity LayerConfig::*member) const {
      const Granularity granularity = layer.config.*member;
      if (granularity != Granularity::tensor) put(granularity == Granularity::row ? "row" : "group");
    }
    void operator()(int LayerConfig::*member) const {
      const bool silent = writer.content_ == LayerContent::topology && member == &LayerConfig::seq_length &&
                          layer.config.seq_length == 1 && !reads_seq_length(layer.config.type);
      if (!silent) put_if(layer.config.*member);
    }
    void operator()(double LayerConfig::*member) const { put_if(layer.config.*member); }
    void operator()(bool LayerConfig::*member) const { put_if(layer.config.*member); }
    void operator()(std::string LayerConfig::*member) const { put_if(layer.config.*member); }
    void operator()(std::vector<float> LayerConfig::*member) const { put_floats(layer.config.*member); }
    void operator()(std::vector<bool> LayerConfig::*member) const {
      put_list(layer.config.*member, [&](bool flag) { json.value(flag); });
    }
    void operator()(std::vector<int> LayerConfig::*member) const {
      put_list(layer.config.*member, [&](int number) { json.value(number); });
    }
    void operator()(const TargetField& field) const { put_if(layer.config.target.*field.member); }
    void operator()(WeightKey part) const {
      if (weights.bytes.empty()) return;
      switch (part) {
        case WeightKey::weights: json.key(key); return json.base64(weights.bytes);
        case WeightKey::native: return put(true);
        case WeightKey::scale: return put_if(weights.scale);
        case WeightKey::scales: return put_floats(weights.scales);
      }
    }
    void operator()(std::vector<Layer> Layer::*member) const {
      put_list(layer.*member, [&](const Layer& child) { writer.write(child, child.at); });
    }
    void operator()(std::unique_ptr<Layer> Layer::*member) const {
      const std::unique_ptr<Layer>& child = layer.*member;
      if (!child) return;
      json.key(key);
      writer.write(*child, child->at);
    }
    void operator()(NetworkPointer Layer::*member) const {
      const NetworkPointer& network = layer.*member;
      if (!network) return;
      json.key(key);
      write_network(json, *network, writer.content_);
    }
    void operator()(std::vector<MetaRule> Layer::*member) const {
      put_list(layer.*member, [&](const MetaRule& rule) { write_rule(json, rule); });
    }
  };

  JsonWriter& json_;
  LayerContent content_;
};

}  // namespace

void write_network(JsonWriter& json, const Network& network, LayerContent content) {
  json.begin_object();
  json.key("id");
  json.value(network.id);
  json.key("depth");
  json.value(network.depth());
  json.key("rows");
  json.value(network.rows());
  json.key("cols");
  json.value(network.cols());
  json.key("layers_per_cell");
  json.value(network.layers_per_cell());
  json.key("layers");
  json.begin_array();
  LayerWriter writer(json, content);
  // Where a grid layer stands is its place, whatever it says itself.
  const std::span<const Layer> layers = network.layers();
  Coordinates at;
  std::size_t index = 0;
  for (at.z = 0; at.z < network.depth(); ++at.z) {
    for (at.y = 0; at.y < network.rows(); ++at.y) {
      for (at.x = 0; at.x < network.cols(); ++at.x) {
        for (at.l = 0; at.l < network.layers_per_cell(); ++at.l) writer.write(layers[index++], at);
      }
    }
  }
  json.end_array();
  json.end_object();
}

}  // namespace imago::checkpoint

namespace imago {

std::string serialize_network(const Network& network) {
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::indented);
  checkpoint::write_network(json, network, checkpoint::LayerContent::all);
  return std::move(sink.text());
}

}  // namespace imago
