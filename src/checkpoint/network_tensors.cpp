#include "checkpoint/network_tensors.h"

#include <fmt/format.h>

#include <filesystem>
#include <list>
#include <memory>
#include <optional>
#include <set>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
#include "files/gguf.h"
#include "files/packed_safetensors.h"
#include "files/safetensors.h"
#include "imago/error.h"
#include "quant/packed_array.h"

namespace imago::checkpoint {

namespace {

/// The value of kNetworkKey; none if the file does not have it.
std::optional<std::string_view> network_entry(const files::TensorFile& file) {
  if (file.gguf() != nullptr) {
    const GgufValue* value = file.gguf()->find(kNetworkKey);
    return value == nullptr ? std::nullopt : value->string();
  }
  for (const auto& [key, value] : file.metadata()) {
    if (key == kNetworkKey) return value;
  }
  return std::nullopt;
}

/// The tensor of the layer number `index` in the order of for_each_path. Names of GGUF are short, paths need not be.
std::string tensor_name(const std::string& path, std::size_t index, bool gguf) {
  const bool fits = path.size() + files::kScalesSuffix.size() <= files::kMaxGgufName;
  return !gguf || fits ? path : fmt::format("weights.{}", index);
}

JsonDocument parse_entry(const files::TensorFile& file) {
  return JsonDocument::parse(*network_entry(file), fmt::format("{}, entry {}", file.path(), kNetworkKey),
                             {.max_depth = kMaxCheckpointJsonDepth});
}

constexpr std::string_view kBiasesSuffix = ".biases";

/// The blocks of the matrices, then the biases.
void install_blocks(Layer& layer, const files::StoredTensor& tensor, const files::StoredTensor* biases) {
  layer.config.dtype = *tensor.format;
  const std::size_t vectors = weight_shape(layer.config).vector_count();
  if (biases == nullptr ? vectors != 0 : biases->format != DType::float32 || biases->shape.elements() != vectors) {
    throw ShapeError(fmt::format("it needs {} float32 values in a tensor {}{}", vectors, tensor.name, kBiasesSuffix));
  }
  std::vector<std::byte> bytes(tensor.bytes.begin(), tensor.bytes.end());
  if (biases != nullptr) bytes.insert(bytes.end(), biases->bytes.begin(), biases->bytes.end());
  install_weights(layer, {.bytes = bytes}, Fp4Table::ocp);
}

/// `scale`: as the entry states it for types that have none in the file.
void install_tensor(Layer& layer, const files::StoredTensor& tensor, const files::StoredTensor* biases, float scale,
                    Fp4Table fp4) {
  const LayerConfig& config = layer.config;
  const WeightShape shape = weight_shape(config);
  const bool blocks = tensor.format && stands_as_blocks(*tensor.format);
  const std::size_t wanted = blocks ? shape.matrix_count() : shape.count();
  if (tensor.shape.elements() != wanted) {
    throw ShapeError(fmt::format("{} is not {} weights", tensor.shape.to_string(), wanted));
  }
  if (blocks) return install_blocks(layer, tensor, biases);
  if (tensor.format != config.dtype) {
    throw UsageError(fmt::format("it is {}, but the layer is {}", tensor.type, config.dtype.name()));
  }
  const bool single = config.granularity == Granularity::tensor;
  StoredWeights stored{.bytes = tensor.bytes, .scale = scale};
  if (tensor.format->has_scales()) {
    if (tensor.scale_values.empty()) throw UsageError("its scales are missing");
    if (single) {
      stored.scale = tensor.scale_values.front();
      stored.zero_point = tensor.zero_points.empty() ? 0 : tensor.zero_points.front();
    } else {
      stored.scale = 0;
      stored.scales = tensor.scale_values;
      stored.zeros = tensor.zero_points;
    }
  }
  install_weights(layer, stored, fp4);
}

}  // namespace

bool holds_network(const files::TensorFile& file) { return network_entry(file).has_value(); }

Network read_tensors_topology(const files::TensorFile& file) {
  return read_network(parse_entry(file).root(), {.weights = WeightsInJson::ignore});
}

Network read_tensors(const files::TensorFile& file, Fp4Table fp4) {
  const JsonDocument document = parse_entry(file);
  std::map<std::string, float> scales;
  Network network = read_network(document.root(), {.weights = WeightsInJson::ignore, .scales = &scales});
  std::set<const files::StoredTensor*> used;
  std::size_t index = 0;
  for_each_path(network, [&](const std::string& path, Layer& layer) {
    const files::StoredTensor* tensor = file.find(tensor_name(path, index++, file.gguf() != nullptr));
    if (tensor == nullptr) return;
    used.insert(tensor);
    const bool blocks = tensor->format && stands_as_blocks(*tensor->format);
    const files::StoredTensor* biases = blocks ? file.find(tensor->name + std::string(kBiasesSuffix)) : nullptr;
    if (biases != nullptr) used.insert(biases);
    const auto scale = scales.find(path);
    try {
      install_tensor(layer, *tensor, biases, scale == scales.end() ? 1 : scale->second, fp4);
    } catch (const FormatError&) {
      throw;
    } catch (const Error& error) {
      throw FormatError(tensor->file, tensor->offset,
                        fmt::format("tensor '{}' does not fit its layer, {} ({}): {}", tensor->name, path,
                                    name(layer.config.type), error.what()));
    }
  });
  for (const files::StoredTensor& tensor : file.tensors()) {
    if (used.contains(&tensor)) continue;
    throw FormatError(tensor.file, tensor.offset,
                      fmt::format("tensor '{}' belongs to no layer of the network", tensor.name));
  }
  return network;
}

namespace {

/// The tensors of a file, and what keeps their bytes alive.
class OutgoingTensors {
 public:
  OutgoingTensors(const Network& network, bool gguf) : gguf_(gguf) {
    std::size_t index = 0;
    for_each_path(network, [&](const std::string& path, const Layer& layer) {
      const std::string name = tensor_name(path, index++, gguf);
      if (layer.weights) add_layer(layer, name);
    });
    metadata_ = {{std::string(kNetworkKey), network_text(network, files::JsonStyle::compact, LayerContent::described)}};
    if (!packed_.empty()) metadata_.emplace_back(files::kPackedKey, files::packed_text(packed_));
  }

  void write(const std::string& path) {
    if (!gguf_) return write(SafetensorsWriter(path, std::move(entries_), std::move(metadata_)));
    std::vector<GgufMetadata> metadata;
    for (auto& [key, value] : metadata_) metadata.push_back({std::move(key), std::move(value)});
    write(GgufWriter(path, std::move(metadata), std::move(gguf_entries_)));
  }

 private:
  static Shape shape_of(const WeightStore& store) {
    return store.rows() == 1 ? Shape{store.cols()} : Shape{store.rows(), store.cols()};
  }

  void add_layer(const Layer& layer, const std::string& name) {
    const EmittedWeights weights = emit_weights(layer);
    versions_.push_back(weights.version);
    const Scheme scheme = layer.config.scheme();
    const WeightShape& array = layer.weights->shape();
    if (has_parts(scheme.format, array)) {
      const std::size_t blocks = block_bytes(scheme.format, array);
      add_weights(name, scheme, Shape{array.matrix_count()}, weights.bytes.first(blocks));
      add(name + std::string(kBiasesSuffix), DType::float32, Shape{array.vector_count()},
          weights.bytes.subspan(blocks));
      return;
    }
    add_weights(name, scheme, shape_of(*layer.weights), weights.bytes);
    if (!scheme.format.has_scales()) return;
    const auto add_values = [&](std::string_view suffix, float one, std::span<const float> many) {
      const std::span<const float> values = many.empty() ? std::span(&scales_.emplace_back(one), 1) : many;
      add(name + std::string(suffix), DType::float32, Shape{values.size()}, std::as_bytes(values));
    };
    add_values(files::kScalesSuffix, weights.scale, weights.scales);
    if (weights.zero_point == 0 && weights.zeros.empty()) return;
    add_values(files::kZerosSuffix, weights.zero_point, weights.zeros);
    packed_.back().zero_points = true;
  }

  void add_weights(const std::string& name, const Scheme& scheme, const Shape& shape,
                   std::span<const std::byte> bytes) {
    const Format format = scheme.format;
    if (format.is_wide() || (gguf_ && format.in_gguf())) return add(name, format, shape, bytes);
    add(name, gguf_ ? DType::int8 : DType::uint8, Shape{bytes.size()}, bytes);  // GGUF has no unsigned bytes
    packed_.push_back({name, format, shape, scheme.granularity, scheme.group, false});
  }

  void add(const std::string& name, Format format, const Shape& shape, std::span<const std::byte> bytes) {
    gguf_ ? gguf_entries_.push_back({name, gguf_tensor_type(format), shape})
          : entries_.push_back({name, files::safetensors_type(format.dtype()).value(), shape});
    contents_[name] = bytes;
  }

  template <class Writer>
  void write(Writer writer) const {
    for (const auto& entry : writer.entries()) writer.write(entry.name, contents_.at(entry.name));
    writer.commit();
  }

  bool gguf_;
  std::vector<SafetensorsEntry> entries_;
  std::vector<GgufEntry> gguf_entries_;
  std::vector<files::PackedTensor> packed_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::map<std::string, std::span<const std::byte>> contents_;
  std::vector<std::shared_ptr<const Version>> versions_;  // what their bytes lie in
  std::list<float> scales_;                               // likewise
};

}  // namespace

void save_tensors(const std::string& path, const Network& network) {
  OutgoingTensors(network, std::filesystem::path(path).extension() == ".gguf").write(path);
}

}  // namespace imago::checkpoint
