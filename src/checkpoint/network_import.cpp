#include "checkpoint/network_import.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "checkpoint/entity.h"
#include "files/json_writer.h"
#include "imago/error.h"

namespace imago {

namespace checkpoint {

ImportedNetwork import_network(const files::TensorFile& file, const ImportOptions& options) {
  if (file.form() == FileForm::huggingface || file.form() == FileForm::gguf) return import_decoder(file, options);
  if (file.form() == FileForm::safetensors) return import_guessed(file, options);
  throw UnsupportedError(
      fmt::format("{}: layers are made of Hugging Face folders, GGUF and safetensors files, not of {}", file.path(),
                  name(file.form())));
}

std::vector<float> read_values(const files::StoredTensor& tensor) {
  std::vector<float> values(tensor.shape.elements());
  files::decode_tensor(tensor, 0, values);
  return values;
}

std::string transformer_json(const ImportedNetwork& imported) {
  const std::span<const Layer> layers = imported.network.layers();
  const LayerConfig attention = layers[1].config, feed_forward = layers[3].config;
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::compact);
  const auto put = [&](std::string_view key, const auto& value) {
    json.key(key);
    json.value(value);
  };
  json.begin_object();
  put("architecture", "llama_style_decoder");
  put("hidden_size", attention.d_model);
  put("vocab_size", static_cast<int>(imported.embeddings.shape()[0]));
  put("lm_head_tied", imported.head.size() == 0);
  put("has_final_norm", imported.final_norm.size() != 0);
  put("weight_dtype", name(attention.dtype));
  json.key("dims");
  json.begin_object();
  put("num_layers", static_cast<int>(layers.size() / 4));
  put("num_heads", attention.num_heads);
  put("num_kv_heads", attention.num_kv_heads);
  put("head_dim", attention.head_dim);
  put("query_dim", attention.query_dim);
  put("kv_dim", attention.num_kv_heads * attention.head_dim);
  put("intermediate_size", feed_forward.output_height);
  put("rms_norm_eps", attention.rms_norm_eps);
  put("rope_freq_base", attention.rope_freq_base);
  put("activation", name(feed_forward.activation));
  json.end_object();
  json.end_object();
  return std::move(sink.text());
}

}  // namespace checkpoint

ImportedNetwork import_network(const std::string& path, const ImportOptions& options) {
  return checkpoint::import_network(files::TensorFile::open(path, options.eager), options);
}

void save_network(const ImportedNetwork& imported, const std::string& path) {
  if (!imported.is_decoder || std::filesystem::path(path).extension() != ".entity") {
    return save_network(imported.network, path);
  }
  std::vector<checkpoint::EntityBlob> blobs;
  const auto add = [&](std::string_view what, const Tensor<float>& values) {
    if (values.size() == 0) return;
    blobs.push_back({fmt::format("transformer.{}", what), std::string(name(DType::float32)), 0, false,
                     std::as_bytes(values.values())});
  };
  add("embeddings", imported.embeddings);
  add("lm_head", imported.head);
  add("final_norm", imported.final_norm);
  AtomicFile file(path);
  files::FileSink sink(file);
  checkpoint::write_entity(sink, imported.network, checkpoint::transformer_json(imported), blobs);
  file.commit();
}

}  // namespace imago
