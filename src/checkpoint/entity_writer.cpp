#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/entity.h"
#include "checkpoint/layer_paths.h"

namespace imago::checkpoint {

namespace {

/// A blob and what keeps its bytes alive.
struct OutgoingBlob {
  EntityBlob blob;
  std::shared_ptr<const Version> version;
};

std::vector<OutgoingBlob> collect(const Network& network) {
  std::vector<OutgoingBlob> blobs;
  for_each_path(network, [&](const std::string& path, const Layer& layer) {
    if (!layer.weights) return;
    if (layer.config.type == LayerType::rms_norm) {  // always float32 here, whatever the layer computes with
      blobs.push_back({{path, std::string(name(DType::float32)), layer.weights->scale(DType::float32), true,
                        std::as_bytes(layer.weights->master())},
                       nullptr});
      return;
    }
    const EmittedWeights weights = emit_weights(layer);
    blobs.push_back(
        {{path, std::string(name(layer.config.dtype)), weights.scale, true, weights.bytes}, weights.version});
    if (!weights.scales.empty()) {
      blobs.push_back({{path + ".scales", std::string(name(DType::float32)), 0, true, std::as_bytes(weights.scales)},
                       weights.version});
    }
  });
  return blobs;
}

void write_blob_list(JsonWriter& json, std::span<const OutgoingBlob> blobs) {
  json.key("blobs");
  if (blobs.empty()) return json.raw("null");  // as the original has it
  json.begin_array();
  std::uint64_t offset = 0;
  for (const auto& [blob, version] : blobs) {
    json.begin_object();
    json.key("path");
    json.value(blob.path);
    json.key("offset");
    json.value(offset);
    json.key("length");
    json.value(std::uint64_t{blob.bytes.size()});
    json.key("dtype");
    json.value(blob.dtype);
    if (blob.scale != 0) {
      json.key("scale");
      json.value(blob.scale);
    }
    json.key("native");
    json.value(blob.native);
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
                  std::span<const EntityBlob> decoder_blobs) {
  std::vector<OutgoingBlob> blobs = collect(network);
  for (const EntityBlob& blob : decoder_blobs) blobs.push_back({blob, nullptr});

  StringSink header;
  JsonWriter json(header, files::JsonStyle::compact);
  json.begin_object();
  json.key("format_version");
  json.value(1);
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

}  // namespace imago::checkpoint
