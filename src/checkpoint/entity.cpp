#include "checkpoint/entity.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
#include "files/json.h"
#include "files/name_index.h"
#include "imago/error.h"
#include "quant/packed_array.h"

namespace imago::checkpoint {

namespace {

constexpr std::size_t kFixedBytes = 20;
constexpr std::uint64_t kMaxHeader = std::uint64_t{256} << 20;

template <class T>
T read_at(std::span<const std::byte> file, std::size_t at) {
  T value{};
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

/// Bytes of the header, checked.
std::size_t header_length(std::span<const std::byte> file, std::string_view path) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (!text.starts_with(kEntityMagic)) throw FormatError(path, 0, "this is not an .entity file");
  if (file.size() < kFixedBytes) throw FormatError(path, file.size(), "the file is cut off in its first bytes");
  const auto version = read_at<std::uint16_t>(file, 8);
  if (version == 0x0100) throw FormatError(path, 8, "the file comes from a big-endian machine");
  if (version != 1) throw FormatError(path, 8, fmt::format("version {} is not known: only 1 is", version));
  const auto flags = read_at<std::uint16_t>(file, 10);
  if (flags != 0) throw FormatError(path, 10, fmt::format("flags {} are not known", flags));
  const auto length = read_at<std::uint64_t>(file, 12);
  if (length > kMaxHeader) {
    throw FormatError(path, 12, fmt::format("a header of {} bytes: at most {} are allowed", length, kMaxHeader));
  }
  if (length > file.size() - kFixedBytes) {
    throw FormatError(path, 12,
                      fmt::format("the header has {} bytes, but the file ends after {}: it may be cut off", length,
                                  file.size() - kFixedBytes));
  }
  return length;
}

/// A blob and the place in the header to blame.
struct PlacedBlob {
  EntityBlob blob;
  JsonValue value;
};

JsonValue require(const JsonValue& object, std::string_view key) {
  const std::optional<JsonValue> value = object.find(key);
  if (!value) object.fail(fmt::format("{} is missing", key));
  return *value;
}

std::vector<PlacedBlob> read_blobs(const JsonValue& list, std::span<const std::byte> data) {
  constexpr std::int64_t kMaxOffset = std::numeric_limits<std::int64_t>::max();
  std::vector<PlacedBlob> blobs;
  std::uint64_t used = 0;
  for (const JsonMember& element : list.elements("blobs")) {
    const JsonValue& value = element.value;
    EntityBlob blob;
    blob.path = require(value, "path").string("path");
    blob.dtype = require(value, "dtype").string("dtype");
    if (const auto scale = value.find("scale")) blob.scale = scale->single("scale");
    if (const auto zero_point = value.find("zero_point")) blob.zero_point = zero_point->single("zero_point");
    if (const auto native = value.find("native")) blob.native = native->boolean("native");
    const auto offset = static_cast<std::uint64_t>(require(value, "offset").integer("offset", 0, kMaxOffset));
    const auto length = static_cast<std::uint64_t>(require(value, "length").integer("length", 0, kMaxOffset));
    if (offset != used) {
      value.fail(fmt::format("blob {} starts at {}, but the one before it ends at {}", blob.path, offset, used));
    }
    if (length > data.size() - used) {
      value.fail(fmt::format("blob {} ends {} bytes past the end of the file: it may be cut off", blob.path,
                             length - (data.size() - used)));
    }
    blob.bytes = data.subspan(used, length);
    used += length;
    blobs.push_back({std::move(blob), value});
  }
  if (used != data.size()) list.fail(fmt::format("{} bytes after the last blob belong to no blob", data.size() - used));
  return blobs;
}

/// What the blobs have for one layer.
struct LayerParts {
  Layer* layer = nullptr;
  const PlacedBlob* own = nullptr;
  const PlacedBlob* scales = nullptr;
  const PlacedBlob* zeros = nullptr;
  const PlacedBlob* biases = nullptr;
  std::vector<DecoderMatrix> matrices;
  const PlacedBlob* last = nullptr;  // any of them, to blame
};
using PartsByPath = std::map<std::string, LayerParts, std::less<>>;

std::size_t float_count(const PlacedBlob* placed) {
  if (placed == nullptr) return 0;
  if (placed->blob.dtype != name(DType::float32) || placed->blob.bytes.size() % sizeof(float) != 0) {
    placed->value.fail(fmt::format("blob {} must be float32", placed->blob.path));
  }
  return placed->blob.bytes.size() / sizeof(float);
}

std::vector<float> floats_of(const PlacedBlob& placed) {
  std::vector<float> values(float_count(&placed));
  if (!values.empty()) std::memcpy(values.data(), placed.blob.bytes.data(), placed.blob.bytes.size());
  return values;
}

/// Files one blob under the layer that it belongs to; false if it belongs to none.
bool assign(PartsByPath& layers, const PlacedBlob& placed) {
  const std::string_view path = placed.blob.path;
  const auto own = layers.find(path);
  if (own != layers.end()) {
    own->second.own = own->second.last = &placed;
    return true;
  }
  const std::size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return false;
  const std::string_view last = path.substr(dot + 1);
  const auto parent = layers.find(path.substr(0, dot));
  if (parent != layers.end()) {
    LayerParts& parts = parent->second;
    parts.last = &placed;
    if (last == "scales") {
      parts.scales = &placed;
    } else if (last == "zeros") {
      parts.zeros = &placed;
    } else if (last == "biases") {
      parts.biases = &placed;
    } else if (const LayerField* field = find_layer_field(last)) {  // q_norm, k_norm, inner_norm
      const auto* values = std::get_if<std::vector<float> LayerConfig::*>(&field->place);
      if (values == nullptr) return false;
      parts.layer->config.** values = floats_of(placed);
    } else {
      return false;
    }
    return true;
  }
  // layers.3.q4_0.200: a matrix, two names below its layer
  const std::size_t group = path.rfind('.', dot - 1);
  if (group == std::string_view::npos || dot == 0) return false;
  const auto owner = layers.find(path.substr(0, group));
  const bool packed = placed.blob.dtype == "BITNET_TERNARY" ||
                      (placed.blob.dtype == "Q4_0" && path.substr(group + 1, dot - group - 1) == "q4_0");
  int key = 0;
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), key);
  if (owner == layers.end() || !packed || error != std::errc() || end != last.data() + last.size()) return false;
  owner->second.matrices.push_back({key, &placed.blob});
  owner->second.last = &placed;
  return true;
}

/// Packed matrices with biases, or weights with scales, or nothing.
void check_kinds(const LayerParts& parts) {
  if (parts.scales == nullptr && parts.zeros != nullptr) throw UsageError("it has zero points without scales");
  if (!parts.matrices.empty()) {
    if (parts.own != nullptr || parts.scales != nullptr) throw UsageError("it has packed matrices and other weights");
    return;
  }
  if (parts.biases != nullptr) throw UsageError("it has biases without packed matrices");
  if (parts.own == nullptr && parts.scales != nullptr) throw UsageError("it has scales without weights");
}

void install(const std::string& path, const LayerParts& parts, Fp4Table fp4, EntityBlocksByPath& blocks) {
  check_kinds(parts);
  Layer& layer = *parts.layer;
  if (!parts.matrices.empty()) {
    const std::vector<float> biases = parts.biases ? floats_of(*parts.biases) : std::vector<float>();
    std::vector<std::size_t> words = install_decoder_matrices(layer, parts.matrices, biases);
    if (!words.empty()) blocks[path] = {std::move(words), parts.biases != nullptr};
    return;
  }
  if (parts.own == nullptr) return;
  const EntityBlob& own = parts.own->blob;
  layer.config.dtype = parse_stored_format(own.dtype);
  std::vector<float> scales, zeros;
  if (parts.scales != nullptr) scales = floats_of(*parts.scales);
  if (parts.zeros != nullptr) zeros = floats_of(*parts.zeros);
  install_weights(layer,
                  {.bytes = own.bytes,
                   .native = own.native,
                   .scale = own.scale,
                   .scales = scales,
                   .zero_point = own.zero_point,
                   .zeros = zeros},
                  fp4);
}

TensorSummary measure_list(const PlacedBlob& placed) {
  return {placed.blob.path, placed.blob.dtype, {float_count(&placed)}, placed.blob.bytes.size()};
}

/// As `install`, with sizes alone.
void measure(const LayerParts& parts, std::map<const EntityBlob*, TensorSummary>& summaries) {
  check_kinds(parts);
  if (!parts.matrices.empty()) {
    const std::vector<Shape> shapes =
        measure_decoder_matrices(parts.layer->config, parts.matrices, float_count(parts.biases));
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const EntityBlob& blob = *parts.matrices[i].blob;
      summaries[&blob] = {blob.path, blob.dtype, shapes[i], blob.bytes.size()};
    }
  } else if (parts.own != nullptr) {
    const EntityBlob& own = parts.own->blob;
    LayerConfig config = parts.layer->config;
    config.dtype = parse_stored_format(own.dtype);
    summaries[&own] = measure_weights(config,
                                      {.bytes = own.bytes.size(),
                                       .native = own.native,
                                       .scales = float_count(parts.scales),
                                       .zeros = float_count(parts.zeros)},
                                      own.path);
    summaries[&own].bytes = own.bytes.size();  // scales and zero points are blobs of their own
  }
}

/// Files all blobs under the layers of `network`, and calls handle(path, parts) for each layer that has some.
template <class Handle>
void assign_all(Network& network, const std::vector<PlacedBlob>& blobs, std::vector<EntityBlob>& decoder_blobs,
                Handle&& handle) {
  const files::NameIndex<PlacedBlob> by_path(blobs,
                                             [](const PlacedBlob& p) -> std::string_view { return p.blob.path; });
  if (const PlacedBlob* twice = by_path.find_repeated()) {
    twice->value.fail(fmt::format("blob {} comes twice", twice->blob.path));
  }
  PartsByPath layers;
  for_each_path(network, [&](const std::string& path, Layer& layer) { layers[path].layer = &layer; });
  for (const PlacedBlob& placed : blobs) {
    if (placed.blob.path.starts_with("transformer.")) {
      decoder_blobs.push_back(placed.blob);
    } else if (!assign(layers, placed)) {
      placed.value.fail(
          fmt::format("blob {} of type {} belongs to nothing in this network", placed.blob.path, placed.blob.dtype));
    }
  }
  for (const auto& [path, parts] : layers) {
    if (parts.last == nullptr) continue;
    try {
      handle(path, parts);
    } catch (const FormatError&) {
      throw;
    } catch (const Error& error) {
      parts.last->value.fail(
          fmt::format("the weights of {} ({}) do not fit: {}", path, name(parts.layer->config.type), error.what()));
    }
  }
}

/// The header of a file, and the bytes after it.
struct OpenEntity {
  JsonDocument document;
  std::span<const std::byte> data;
};

OpenEntity open_entity(std::span<const std::byte> file, std::string_view path) {
  const std::size_t length = header_length(file, path);
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kFixedBytes, length);
  OpenEntity open{JsonDocument::parse(text, path, {.base = kFixedBytes, .max_depth = kMaxCheckpointJsonDepth + 1}),
                  file.subspan(kFixedBytes + length)};
  require(open.document.root(), "format_version").integer("format_version", 1, 1);
  return open;
}

Network read_topology(const JsonValue& root) {
  return read_network(require(root, "network"), {.weights = WeightsInJson::ignore});
}

std::string read_transformer(const JsonValue& root) {
  const auto transformer = root.find("transformer");
  if (!transformer) return {};
  transformer->members("transformer");
  return std::string(transformer->source());
}

std::vector<PlacedBlob> read_blobs(const OpenEntity& open) {
  const JsonValue root = open.document.root();
  if (const auto list = root.find("blobs")) return read_blobs(*list, open.data);
  if (!open.data.empty()) root.fail(fmt::format("{} bytes after the header belong to no blob", open.data.size()));
  return {};
}

}  // namespace

Entity read_entity(std::span<const std::byte> file, std::string_view path, Fp4Table fp4) {
  const OpenEntity open = open_entity(file, path);
  const JsonValue root = open.document.root();
  Entity entity{read_topology(root), read_transformer(root), {}, {}};
  assign_all(entity.network, read_blobs(open), entity.decoder_blobs,
             [&](const std::string& layer, const LayerParts& parts) { install(layer, parts, fp4, entity.blocks); });
  return entity;
}

EntityContents measure_entity(std::span<const std::byte> file, std::string_view path) {
  const OpenEntity open = open_entity(file, path);
  const JsonValue root = open.document.root();
  EntityContents contents{read_topology(root), read_transformer(root), {}, 0};
  const std::vector<PlacedBlob> blobs = read_blobs(open);
  std::map<const EntityBlob*, TensorSummary> summaries;  // of weights; all other blobs are plain lists of numbers
  std::vector<EntityBlob> decoder_blobs;
  assign_all(contents.network, blobs, decoder_blobs,
             [&](const std::string&, const LayerParts& parts) { measure(parts, summaries); });
  for (const PlacedBlob& placed : blobs) {
    const EntityBlob& blob = placed.blob;
    const auto found = summaries.find(&blob);
    contents.tensors.push_back(found != summaries.end() ? found->second : measure_list(placed));
    const bool describes = blob.path.ends_with(".scales") || blob.path.ends_with(".zeros");
    if (!describes) contents.parameters += contents.tensors.back().shape.elements();
  }
  return contents;
}

namespace {

/// A blob and what keeps its bytes alive.
struct OutgoingBlob {
  EntityBlob blob;
  std::shared_ptr<const void> owner;
};

/// A layer in entity_q4_0 as the original has it: its matrices one by one, norms, biases. `read` says how it was read,
/// if it was.
void collect_blocks(const std::string& path, const Layer& layer, const EntityBlocks* read,
                    std::vector<OutgoingBlob>& blobs) {
  const EmittedWeights weights = emit_weights(layer);
  const auto add_floats = [&](std::string_view what, std::span<const std::byte> bytes) {
    blobs.push_back(
        {{fmt::format("{}.{}", path, what), std::string(name(DType::float32)), 0, false, bytes}, weights.version});
  };
  const std::span<const std::size_t> words = read == nullptr ? std::span<const std::size_t>() : read->words;
  for (auto& [key, bytes] : emit_decoder_matrices(layer.config, weights.bytes, words)) {
    const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
    blobs.push_back({{fmt::format("{}.q4_0.{}", path, key), "Q4_0", 0, true, *kept}, kept});
  }
  if (!layer.config.q_norm.empty()) add_floats("q_norm", std::as_bytes(std::span(layer.config.q_norm)));
  if (!layer.config.k_norm.empty()) add_floats("k_norm", std::as_bytes(std::span(layer.config.k_norm)));
  // The original has biases of SwiGLU always, and of attention never.
  const auto biases = weights.bytes.subspan(block_bytes(layer.config.dtype, layer.weights->shape()));
  const bool usual = read == nullptr ? layer.config.type == LayerType::swiglu : read->has_biases;
  const bool zero = std::ranges::all_of(biases, [](std::byte byte) { return byte == std::byte{0}; });
  if (usual || !zero) add_floats("biases", biases);
}

std::vector<OutgoingBlob> collect(const Network& network, const EntityBlocksByPath& blocks) {
  std::vector<OutgoingBlob> blobs;
  for_each_path(network, [&](const std::string& path, const Layer& layer) {
    if (!layer.weights) return;
    if (layer.config.type == LayerType::rms_norm) {  // always float32 here, whatever the layer computes with
      blobs.push_back({{path, std::string(name(DType::float32)), layer.weights->scale(DType::float32), true,
                        std::as_bytes(layer.weights->master())},
                       nullptr});
      return;
    }
    if (has_entity_blocks(layer.config)) {
      const auto read = blocks.find(path);
      return collect_blocks(path, layer, read == blocks.end() ? nullptr : &read->second, blobs);
    }
    const EmittedWeights weights = emit_weights(layer);
    blobs.push_back(
        {{path, std::string(layer.config.dtype.name()), weights.scale, true, weights.bytes, weights.zero_point},
         weights.version});
    const auto add_floats = [&](const char* suffix, std::span<const float> values) {
      if (values.empty()) return;
      blobs.push_back(
          {{path + suffix, std::string(name(DType::float32)), 0, true, std::as_bytes(values)}, weights.version});
    };
    add_floats(".scales", weights.scales);
    add_floats(".zeros", weights.zeros);
  });
  return blobs;
}

void write_blob_list(JsonWriter& json, std::span<const OutgoingBlob> blobs) {
  json.key("blobs");
  if (blobs.empty()) return json.raw("null");  // as the original has it
  json.begin_array();
  std::uint64_t offset = 0;
  for (const auto& [blob, owner] : blobs) {
    json.begin_object();
    json.member("path", blob.path);
    json.member("offset", offset);
    json.member("length", blob.bytes.size());
    json.member("dtype", blob.dtype);
    if (blob.scale != 0) json.member("scale", blob.scale);
    if (blob.zero_point != 0) json.member("zero_point", blob.zero_point);
    json.member("native", blob.native);
    json.end_object();
    offset += blob.bytes.size();
  }
  json.end_array();
}

template <class T>
std::string_view raw_bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace

void write_entity(Sink& sink, const Network& network, std::string_view transformer,
                  std::span<const EntityBlob> decoder_blobs, const EntityBlocksByPath& blocks) {
  std::vector<OutgoingBlob> blobs = collect(network, blocks);
  for (const EntityBlob& blob : decoder_blobs) blobs.push_back({blob, nullptr});

  StringSink header;
  JsonWriter json(header, files::JsonStyle::compact);
  json.begin_object();
  json.member("format_version", 1);
  json.key("network");
  write_network(json, network, LayerContent::topology);
  if (!transformer.empty()) {
    json.key("transformer");
    json.raw(transformer);
  }
  write_blob_list(json, blobs);
  json.end_object();

  const std::uint16_t version = 1, flags = 0;
  const std::uint64_t length = header.text().size();
  sink.write(kEntityMagic);
  sink.write(raw_bytes(version));
  sink.write(raw_bytes(flags));
  sink.write(raw_bytes(length));
  sink.write(header.text());
  for (const auto& [blob, kept] : blobs) {
    sink.write({reinterpret_cast<const char*>(blob.bytes.data()), blob.bytes.size()});
  }
}

void save_entity(const std::string& path, const Network& network, std::string_view transformer,
                 std::span<const EntityBlob> decoder_blobs, const EntityBlocksByPath& blocks) {
  AtomicFile file(path);
  files::FileSink sink(file);
  write_entity(sink, network, transformer, decoder_blobs, blocks);
  file.commit();
}

}  // namespace imago::checkpoint
