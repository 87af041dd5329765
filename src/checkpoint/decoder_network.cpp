#include "checkpoint/decoder_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/checked.h"
#include "base/file.h"
#include "checkpoint/network_tensors.h"
#include "imago/error.h"

namespace imago::checkpoint {

Layer decoder_block(std::vector<Layer> attention, std::vector<Layer> feed_forward) {
  return sequential(
      layer_list(sequential(std::move(attention)), residual(), sequential(std::move(feed_forward)), residual()));
}

Network decoder_network(std::string id, DecoderEnds ends, std::vector<Layer> blocks) {
  std::vector<Layer> layers = layer_list(std::move(ends.embedding));
  std::ranges::move(blocks, std::back_inserter(layers));
  if (ends.norm) layers.push_back(std::move(*ends.norm));
  layers.push_back(std::move(ends.head));
  Network network(1, 1, 1, checked_cast<int>(layers.size(), "the layers of a decoder"));
  network.id = std::move(id);
  std::ranges::move(layers, network.layers().begin());
  return network;
}

Network decoder_network(Entity entity, const std::string& path) {
  const std::span<Layer> layers = entity.network.layers();
  const auto fail = [&](std::string_view what) { throw FormatError(path, 0, what); };
  if (layers.size() < 4 || layers.size() % 4 != 0) {
    fail(fmt::format("a decoder has four layers for each block, and this one has {} layers", layers.size()));
  }
  const int width = layers[1].config.d_model;
  if (width <= 0) fail("the second layer of the decoder is not attention with a width");
  const double eps = layers[0].config.rms_norm_eps;
  const auto table = [&](std::string_view name) -> std::optional<std::vector<float>> {
    const auto blob = std::ranges::find(entity.decoder_blobs, fmt::format("transformer.{}", name), &EntityBlob::path);
    if (blob == entity.decoder_blobs.end()) return std::nullopt;
    const std::size_t row = sizeof(float) * static_cast<std::size_t>(width);
    if (blob->dtype != imago::name(DType::float32) || blob->bytes.empty() || blob->bytes.size() % row != 0) {
      fail(fmt::format("blob {} is not rows of {} float32 values", blob->path, width));
    }
    std::vector<float> values(blob->bytes.size() / sizeof(float));
    std::memcpy(values.data(), blob->bytes.data(), blob->bytes.size());
    return values;
  };
  const auto filled = [&](Layer layer, std::span<const float> values) {
    const WeightShape shape = weight_shape(layer.config);
    layer.weights.emplace(shape).set_master(values);
    return layer;
  };
  const std::optional<std::vector<float>> embeddings = table("embeddings"), norm = table("final_norm");
  if (!embeddings) fail("the decoder has no blob transformer.embeddings");
  const std::vector<float> head = table("lm_head").value_or(*embeddings);
  const int vocabulary = checked_cast<int>(embeddings->size() / static_cast<std::size_t>(width), "the vocabulary");
  if (head.size() != embeddings->size()) fail("the head of the decoder is not as large as its embeddings");
  DecoderEnds ends{.embedding = filled(embedding(vocabulary, width), *embeddings)};
  if (norm) ends.norm = filled(rms_norm(width, eps), *norm);
  ends.head = filled(dense(width, vocabulary), head);
  std::vector<Layer> blocks;
  for (std::size_t i = 0; i < layers.size(); i += 4) {
    blocks.push_back(decoder_block(layer_list(std::move(layers[i]), std::move(layers[i + 1])),
                                   layer_list(std::move(layers[i + 2]), std::move(layers[i + 3]))));
  }
  return decoder_network(entity.network.id, std::move(ends), std::move(blocks));
}

files::TensorFile open_model(const std::string& path, const LoadOptions& options) {
  const FileForm form = detect_form(path);
  const auto own = [](Network network) { return std::make_shared<const Network>(std::move(network)); };
  if (form == FileForm::entity) {
    const MappedFile file = MappedFile::open(path, options.eager ? Reading::eager : Reading::automatic);
    Entity entity = read_entity(file.bytes(), path, options.fp4);
    const bool original = !entity.transformer.empty();
    return model_of(own(original ? decoder_network(std::move(entity), path) : std::move(entity.network)), path);
  }
  if (form == FileForm::checkpoint || form == FileForm::architecture)
    return model_of(own(load_network(path, options)), path);
  files::TensorFile file = files::TensorFile::open(path, options.eager);
  return holds_network(file) ? model_of(own(read_tensors(file, options.fp4)), path) : std::move(file);
}

}  // namespace imago::checkpoint
