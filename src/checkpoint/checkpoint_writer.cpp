// Weights between files and stores.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "quant/packed_array.h"
#include "quant/scheme.h"

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

/// How the weights of a layer lie in a file.
struct Layout {
  WeightShape shape;
  bool as_float = false;              // float32, whatever the dtype of the layer
  std::size_t scales = 0, zeros = 0;  // of rows or groups
};

/// Throws ShapeError unless the sizes are those that the layer needs.
Layout check_sizes(const LayerConfig& config, const StoredSizes& stored) {
  const WeightShape shape = weight_shape(config);
  const std::size_t count = checked_mul(shape.rows, shape.cols, "the number of weights");
  const std::size_t float_bytes = checked_mul(count, sizeof(float), "the size of the weights");
  if (stands_as_blocks(config.dtype)) {
    scale_layout(config.scheme(), shape);  // before the rows are said not to fit by a number of bytes
    if (!stored.native || stored.scales != 0)
      throw UsageError("blocks have neither scales nor float32 values beside them");
  }
  const bool wide = config.dtype == DType::float16 || config.dtype == DType::bfloat16;
  // An older revision stored the 16-bit floats as float32: told by the length.
  const bool as_float = !stored.native || (wide && stored.bytes == float_bytes && count != 0);
  const std::size_t wanted = as_float ? float_bytes : packed_bytes(config.dtype, shape);
  if (stored.bytes != wanted || count == 0) {
    throw ShapeError(fmt::format("{} bytes for {} weights in {}, which take {}", stored.bytes, count,
                                 as_float ? "float32" : config.dtype.name(), wanted));
  }
  if (!stored.native) return {shape, as_float};
  // Types without scales have none per row either, whatever the setting says.
  const Scheme scheme = checked_scheme(config.scheme());
  const bool single = scheme.granularity == Granularity::tensor;
  const std::size_t scales = single ? 0 : scale_layout(scheme, shape).count;
  if (single && stored.scales != 0) throw UsageError("scales are given, but this layer has none per row or group");
  if (!single && stored.scales == 0) throw UsageError("scales per row or group are missing");
  if (stored.scales != scales) throw ShapeError(fmt::format("{} scales, not {}", stored.scales, scales));
  if (stored.zeros != 0 && stored.zeros != scales) {
    throw ShapeError(fmt::format("{} zero points beside {} scales", stored.zeros, scales));
  }
  return {shape, as_float, scales, stored.zeros};
}

}  // namespace

bool stands_as_blocks(Format format) noexcept { return format.is_block(); }

DType dtype_beside(Format format) noexcept {
  if (!stands_as_blocks(format)) return format.dtype();
  return format == BlockFormat::entity_q4_0 ? DType::int4 : DType::float32;
}

Format parse_stored_format(std::string_view text) {
  return text == name(BlockFormat::entity_q4_0) ? BlockFormat::entity_q4_0 : parse_format(text);
}

bool has_entity_blocks(const LayerConfig& config) noexcept {
  return config.dtype == BlockFormat::entity_q4_0 &&
         (config.type == LayerType::multi_head_attention || config.type == LayerType::swiglu);
}

TensorSummary measure_weights(const LayerConfig& config, const StoredSizes& stored, std::string path) {
  const auto [shape, as_float, scales, zeros] = check_sizes(config, stored);
  TensorSummary summary;
  summary.name = std::move(path);
  summary.type = as_float ? name(DType::float32) : config.dtype.name();
  summary.shape = shape.rows == 1 ? Shape{shape.cols} : Shape{shape.rows, shape.cols};
  summary.bytes = stored.bytes + (scales + zeros) * sizeof(float);
  return summary;
}

void install_weights(Layer& layer, const StoredWeights& stored, Fp4Table fp4) {
  const LayerConfig& config = layer.config;
  check_scale(stored.scale);
  check_zero_point(config.dtype, stored.zero_point);
  const auto [shape, as_float, scales, zeros] =
      check_sizes(config, {stored.bytes.size(), stored.native, stored.scales.size(), stored.zeros.size()});
  WeightStore store(shape);
  if (as_float) {
    std::memcpy(store.edit_master().data(), stored.bytes.data(), stored.bytes.size());
    // What a float32 master is rounded with, if the file says so.
    const bool rounds = stored.scale != 0 && config.dtype.has_scales() && config.granularity == Granularity::tensor;
    if (stored.native || rounds) store.set_scale(config.dtype, stored.scale, stored.zero_point);
  } else if (scales != 0) {
    store.set_loaded(config.scheme(), stored.bytes, stored.scales, stored.zeros);
  } else if (config.dtype == DType::fp4 && fp4 == Fp4Table::legacy) {
    store.set_master(decode_legacy_fp4(stored.bytes, shape.count(), stored.scale));
  } else {
    store.set_loaded(config.dtype, stored.bytes, stored.scale, stored.zero_point);
  }
  layer.weights = std::move(store);
}

EmittedWeights emit_weights(const Layer& layer) {
  const WeightStore& store = *layer.weights;
  EmittedWeights emitted;
  const Scheme scheme = layer.config.scheme();
  emitted.version = store.morph(scheme);
  emitted.bytes = emitted.version ? emitted.version->codes() : std::as_bytes(store.master());
  if (stands_as_blocks(scheme.format)) return emitted;
  if (scheme.granularity == Granularity::tensor) {
    emitted.scale = store.scale(scheme.format);
    emitted.zero_point = store.zero_point(scheme.format);
  } else {
    emitted.scales = emitted.version->scales();
    emitted.zeros = emitted.version->zero_points();
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
    std::visit([&](auto member) { json.member(field.key, rule.*member); }, field.place);
  }
  json.end_object();
}

class LayerWriter {
 public:
  LayerWriter(JsonWriter& json, LayerContent content) : json_(json), content_(content) {}

  void write(const Layer& layer, const Coordinates& at) {
    json_.begin_object();
    EmittedWeights weights;
    if (layer.weights && content_ == LayerContent::all) weights = emit_weights(layer);
    if (layer.weights && content_ == LayerContent::described) {
      weights.scale = layer.weights->scale(layer.config.dtype);
    }
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
    void put_if(const T& value) const {
      if (value != T{}) json.member(key, value);
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

    void operator()(int Coordinates::*member) const { json.member(key, at.*member); }
    void operator()(Format LayerConfig::*member) const { json.member(key, name(dtype_beside(layer.config.*member))); }
    void operator()(Granularity LayerConfig::*member) const {
      const Granularity granularity = layer.config.*member;
      if (granularity != Granularity::tensor) json.member(key, granularity == Granularity::row ? "row" : "group");
    }
    void operator()(int LayerConfig::*member) const {
      const bool silent = writer.content_ == LayerContent::topology && member == &LayerConfig::seq_length &&
                          layer.config.seq_length == 1 && !reads_seq_length(layer.config.type);
      if (!silent) put_if(layer.config.*member);
    }
    void operator()(std::vector<float> LayerConfig::*member) const {
      const bool is_blob = member != &LayerConfig::inner_norm && writer.content_ == LayerContent::topology &&
                           layer.weights && has_entity_blocks(layer.config);
      if (!is_blob) put_floats(layer.config.*member);
    }
    template <class T>
    void operator()(std::vector<T> LayerConfig::*member) const {
      put_list(layer.config.*member, [&](T element) { json.value(element); });
    }
    template <class T>
    void operator()(T LayerConfig::*member) const {
      if constexpr (std::is_enum_v<T>) {
        json.member(key, name(layer.config.*member));
      } else {
        put_if(layer.config.*member);
      }
    }
    void operator()(const TargetField& field) const { put_if(layer.config.target.*field.member); }
    void operator()(WeightKey part) const {
      if (writer.content_ == LayerContent::described && part == WeightKey::scale && layer.weights &&
          layer.config.dtype.is_wide() && weights.scale != 1) {
        return json.member(key, weights.scale);
      }
      const Format format = layer.config.dtype;
      if (part == WeightKey::block_format) {
        const bool by_blobs = writer.content_ == LayerContent::topology && has_entity_blocks(layer.config);
        if (stands_as_blocks(format) && !by_blobs) json.member(key, format.name());
        return;
      }
      if (weights.bytes.empty() || stands_as_blocks(format) != (part == WeightKey::blocks)) return;
      switch (part) {
        case WeightKey::blocks:
        case WeightKey::weights: json.key(key); return json.base64(weights.bytes);
        case WeightKey::native: return json.member(key, true);
        case WeightKey::scale: return put_if(weights.scale);
        case WeightKey::scales: return put_floats(weights.scales);
        case WeightKey::block_format: return;
        case WeightKey::zero_point: return put_if(weights.zero_point);
        case WeightKey::zeros: return put_floats(weights.zeros);
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

void write_layer(JsonWriter& json, const Layer& layer, LayerContent content) {
  LayerWriter(json, content).write(layer, layer.at);
}

void write_network(JsonWriter& json, const Network& network, LayerContent content) {
  json.begin_object();
  json.member("id", network.id);
  json.member("depth", network.depth());
  json.member("rows", network.rows());
  json.member("cols", network.cols());
  json.member("layers_per_cell", network.layers_per_cell());
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
  if (!network.files.empty()) {
    json.key("files");
    json.begin_object();
    for (const auto& [name, text] : network.files) json.member(name, text);
    json.end_object();
  }
  json.end_object();
}

std::string network_text(const Network& network, files::JsonStyle style, LayerContent content) {
  files::StringSink sink;
  JsonWriter json(sink, style);
  write_network(json, network, content);
  return std::move(sink.text());
}

}  // namespace imago::checkpoint
