#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/checked.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
#include "files/base64.h"
#include "imago/error.h"

namespace imago::checkpoint {

namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();

// Cells that a file need not list. Without a bound, four numbers could ask for all memory there is.
constexpr std::size_t kUnlistedCells = 65536;

/// A Granularity as files spell it.
Granularity read_granularity(const JsonValue& value, std::string_view key) {
  const std::string text = value.string(key);
  if (text.empty() || text == "tensor") return Granularity::tensor;
  if (text == "row") return Granularity::row;
  if (text == "group") return Granularity::group;
  value.fail(fmt::format("unknown granularity '{}'; known are tensor, row, group", text));
}

Format parse_block_format(const std::string& text) {
  const Format format = parse_stored_format(text);
  if (!stands_as_blocks(format)) throw UsageError(fmt::format("{} is not a block format", format.name()));
  return format;
}

/// A number, flag or text of a setting.
template <class T>
T read_setting(const JsonValue& value, std::string_view key) {
  if constexpr (std::is_same_v<T, int>) {
    return static_cast<int>(value.integral(key, -kMaxInt - 1, kMaxInt));
  } else if constexpr (std::is_same_v<T, bool>) {
    return value.boolean(key);
  } else if constexpr (std::is_same_v<T, float>) {
    return value.single(key);
  } else if constexpr (std::is_same_v<T, double>) {
    return value.number(key);
  } else {
    return value.string(key);
  }
}

MetaRule read_rule(const JsonValue& value) {
  MetaRule rule;
  for (const JsonMember& member : value.members("a rule")) {
    const auto field = std::ranges::find(rule_fields(), member.key, &RuleField::key);
    if (member.value.is_null() || field == rule_fields().end()) continue;
    const auto set = [&]<class T>(T MetaRule::*m) { rule.*m = read_setting<T>(member.value, member.key); };
    std::visit(set, field->place);
  }
  return rule;
}

class NetworkReader {
 public:
  explicit NetworkReader(const NetworkReading& reading) : reading_(reading) {}

  Layer layer(const JsonValue& object) { return read_layer(object, "layer"); }

  Network network(const JsonValue& object, const std::string& path) {
    const auto size = [&](std::string_view key) {
      return static_cast<int>(object.require(key, "the network").integral(key, 1, kMaxInt));
    };
    const int depth = size("depth"), rows = size("rows"), cols = size("cols"), per_cell = size("layers_per_cell");
    const std::optional<JsonValue> list = object.find("layers");
    const std::size_t listed = list ? list->elements("layers").size() : 0;
    check_cells(object, {depth, rows, cols, per_cell}, listed);

    Network network(depth, rows, cols, per_cell);
    if (const std::optional<JsonValue> id = object.find("id")) network.id = id->string("id");
    if (list) grid_layers(network, *list, path);
    if (const std::optional<JsonValue> files = object.find("files")) {
      for (const JsonMember& member : files->members("files")) {
        network.files.emplace_back(member.key, member.value.string(member.key));
      }
    }
    return network;
  }

 private:
  static void check_cells(const JsonValue& object, std::initializer_list<int> sizes, std::size_t listed) {
    std::size_t cells = 1;
    for (const int size : sizes) {
      if (__builtin_mul_overflow(cells, static_cast<std::size_t>(size), &cells) || cells > listed + kUnlistedCells) {
        object.fail(fmt::format("the grid has more cells than the {} layers listed, and {} more, can account for",
                                listed, kUnlistedCells));
      }
    }
  }

  void grid_layers(Network& network, const JsonValue& list, const std::string& path) {
    std::vector<bool> seen(network.layers().size());
    std::size_t position = 0;
    for (const JsonMember& element : list.elements("layers")) {
      Layer layer = read_layer(element.value, child_path(path, "layers", position++));
      const Coordinates at = layer.at;
      const bool inside = at.z >= 0 && at.z < network.depth() && at.y >= 0 && at.y < network.rows() && at.x >= 0 &&
                          at.x < network.cols() && at.l >= 0 && at.l < network.layers_per_cell();
      if (!inside) {
        element.value.fail(fmt::format("layer ({}, {}, {}, {}) lies outside the grid", at.z, at.y, at.x, at.l));
      }
      const std::size_t index = network.index(at);
      if (seen[index]) {
        element.value.fail(fmt::format("layer ({}, {}, {}, {}) comes twice", at.z, at.y, at.x, at.l));
      }
      seen[index] = true;
      network.layers()[index] = std::move(layer);
    }
  }

  /// What the keys of the weights said, until all settings are known.
  struct WeightValues {
    std::optional<JsonValue> weights, scale, scales, zero_point, zeros, blocks;
    std::optional<Format> block_format;
    bool native = false;
  };

  Layer read_layer(const JsonValue& object, const std::string& path) {
    if (depth_ == kMaxLayerDepth) object.fail(fmt::format("layers are nested deeper than {}", kMaxLayerDepth));
    ++depth_;
    LayerConfig config;
    config.activation = Activation::linear;  // of a layer that names none; only cells that are not listed are ReLU
    Layer layer(std::move(config));
    WeightValues values;
    for (const JsonMember& member : object.members(path)) {
      if (member.value.is_null()) continue;
      const LayerField* field = find_layer_field(member.key);
      if (field == nullptr) continue;  // keys of other programs, and of times to come
      std::visit(Setter{*this, layer, values, path, field->key, member.value}, field->place);
    }
    if (values.block_format) layer.config.dtype = *values.block_format;
    if (values.blocks) use_blocks(layer, values);
    if (reading_.weights != WeightsInJson::ignore) load_weights(layer, values, path);
    if (reading_.scales != nullptr && values.scale) (*reading_.scales)[path] = values.scale->single("scale");
    --depth_;
    return layer;
  }

  static void use_blocks(const Layer& layer, WeightValues& values) {
    if (!stands_as_blocks(layer.config.dtype)) values.blocks->fail("blocks without a block_format");
    if (values.weights) values.blocks->fail("a layer has either weights or blocks");
    values.weights = values.blocks;
    values.native = true;
  }

  void load_weights(Layer& layer, const WeightValues& values, const std::string& path) const {
    // The original writes the observed layer's weights on the wrapper too [C1].
    if (!values.weights || layer.config.type == LayerType::metacognition) return;
    if (values.weights->raw_string("weights").empty()) return;
    if (values.scale && values.scales) values.scales->fail("a layer has either scale or scales");
    if (values.zero_point && !values.scale) values.zero_point->fail("a zero point goes with a scale");
    if (values.zeros && !values.scales) values.zeros->fail("zero points go with as many scales");
    try {
      if (reading_.weights == WeightsInJson::measure) return measure(layer, values, path);
      const std::vector<std::byte> bytes = decode_base64(*values.weights, "weights");
      StoredWeights stored{.bytes = bytes, .native = values.native};
      if (values.scale) stored.scale = values.scale->single("scale");
      std::vector<float> scales, zeros;
      if (values.scales) scales = read_floats(*values.scales, "scales");
      if (values.zero_point) stored.zero_point = values.zero_point->single("zero_point");
      if (values.zeros) zeros = read_floats(*values.zeros, "zeros");
      stored.scales = scales;
      stored.zeros = zeros;
      install_weights(layer, stored, reading_.fp4);
    } catch (const FormatError&) {
      throw;
    } catch (const Error& error) {
      values.weights->fail(
          fmt::format("the weights of {} ({}) do not fit: {}", path, name(layer.config.type), error.what()));
    }
  }

  void measure(const Layer& layer, const WeightValues& values, const std::string& path) const {
    StoredSizes sizes{.bytes = measure_base64(*values.weights, "weights"), .native = values.native};
    if (values.scale) values.scale->single("scale");
    if (values.scales) sizes.scales = read_floats(*values.scales, "scales").size();
    if (values.zero_point) values.zero_point->single("zero_point");
    if (values.zeros) sizes.zeros = read_floats(*values.zeros, "zeros").size();
    reading_.measured->push_back(measure_weights(layer.config, sizes, path));
  }

  /// One key of one layer: an overload per kind of place.
  struct Setter {
    NetworkReader& reader;
    Layer& layer;
    WeightValues& values;
    const std::string& path;
    std::string_view key;
    const JsonValue& value;

    /// A name through its parser, whose complaint gets a place.
    template <class Parse>
    auto named(Parse parse) const {
      const std::string text = value.string(key);
      try {
        return parse(text);
      } catch (const UsageError& error) {
        value.fail(fmt::format("{}: {}", path, error.what()));
      }
    }

    void operator()(int Coordinates::*m) const { layer.at.*m = read_setting<int>(value, key); }
    void operator()(LayerType LayerConfig::*m) const {
      layer.config.*m = named([](const std::string& t) { return t.empty() ? LayerType::dense : parse_layer_type(t); });
    }
    void operator()(Activation LayerConfig::*m) const { layer.config.*m = named(parse_activation); }
    void operator()(Format LayerConfig::*m) const {
      layer.config.*m = named([](const std::string& t) { return t.empty() ? DType::float32 : parse_dtype(t); });
    }
    void operator()(SoftmaxType LayerConfig::*m) const {
      // A number in architecture files of the original, a name in its checkpoints.
      constexpr int kLast = static_cast<int>(SoftmaxType::entmax);
      layer.config.*m = value.kind() == JsonKind::number ? static_cast<SoftmaxType>(value.integral(key, 0, kLast))
                                                         : named(parse_softmax_type);
    }
    void operator()(Granularity LayerConfig::*m) const { layer.config.*m = read_granularity(value, key); }
    void operator()(std::vector<float> LayerConfig::*m) const { layer.config.*m = read_floats(value, key); }
    template <class T>
    void operator()(std::vector<T> LayerConfig::*m) const {
      for (const JsonMember& e : value.elements(key)) (layer.config.*m).push_back(read_setting<T>(e.value, key));
    }
    template <class T>
    void operator()(T LayerConfig::*m) const {
      layer.config.*m = read_setting<T>(value, key);
    }
    void operator()(const TargetField& field) const {
      layer.config.target.*field.member = read_setting<int>(value, key);
    }
    void operator()(WeightKey part) const {
      switch (part) {
        case WeightKey::weights: values.weights = value; return;
        case WeightKey::native: values.native = value.boolean(key); return;
        case WeightKey::scale: values.scale = value; return;
        case WeightKey::scales: values.scales = value; return;
        case WeightKey::blocks: values.blocks = value; return;
        case WeightKey::block_format: values.block_format = named(parse_block_format); return;
        case WeightKey::zero_point: values.zero_point = value; return;
        case WeightKey::zeros: values.zeros = value; return;
      }
    }
    void operator()(std::vector<Layer> Layer::*m) const {
      std::size_t index = 0;
      for (const JsonMember& e : value.elements(key)) {
        (layer.*m).push_back(reader.read_layer(e.value, child_path(path, key, index++)));
      }
    }
    void operator()(std::unique_ptr<Layer> Layer::*m) const {
      layer.*m = std::make_unique<Layer>(reader.read_layer(value, fmt::format("{}.{}", path, key)));
    }
    void operator()(NetworkPointer Layer::*m) const {
      layer.*m = std::make_unique<Network>(reader.network(value, fmt::format("{}.{}", path, key)));
    }
    void operator()(std::vector<MetaRule> Layer::*m) const {
      for (const JsonMember& e : value.elements(key)) (layer.*m).push_back(read_rule(e.value));
    }
  };

  NetworkReading reading_;
  int depth_ = 0;
};

}  // namespace

std::vector<float> read_floats(const JsonValue& value, std::string_view what) {
  const std::vector<std::byte> bytes = decode_base64(value, what);
  if (bytes.size() % sizeof(float) != 0) {
    value.fail(fmt::format("{} has {} bytes, which is not a whole number of float32 values", what, bytes.size()));
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Layer read_layer(const JsonValue& object, const NetworkReading& reading) {
  return NetworkReader(reading).layer(object);
}

Network read_network(const JsonValue& object, const NetworkReading& reading) {
  return NetworkReader(reading).network(object, "");
}

}  // namespace imago::checkpoint
