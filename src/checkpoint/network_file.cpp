// Networks by path and by text.

#include <fmt/format.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/entity.h"
#include "checkpoint/network_tensors.h"
#include "files/detect.h"
#include "imago/error.h"

namespace imago {

namespace {

using files::JsonDocument;

constexpr files::JsonOptions kJson{.max_depth = files::kMaxCheckpointJsonDepth};

void save_checkpoint(const Network& network, const std::string& path) {
  AtomicFile file(path);
  files::FileSink sink(file);
  files::JsonWriter json(sink, files::JsonStyle::indented);
  checkpoint::write_network(json, network, checkpoint::LayerContent::all);
  file.commit();
}

}  // namespace

Network deserialize_network(std::string_view json, const LoadOptions& options, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(json, file, kJson);
  return checkpoint::read_network(document.root(), {.fp4 = options.fp4});
}

std::string serialize_network(const Network& network) {
  return checkpoint::network_text(network, files::JsonStyle::indented, checkpoint::LayerContent::all);
}

Layer deserialize_layer(std::string_view json, const LoadOptions& options, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(json, file, kJson);
  return checkpoint::read_layer(document.root(), {.fp4 = options.fp4});
}

std::string serialize_layer(const Layer& layer) {
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::indented);
  checkpoint::write_layer(json, layer, checkpoint::LayerContent::all);
  return std::move(sink.text());
}

Network build_network_from_json(std::string_view json, std::uint64_t seed, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(json, file, kJson);
  Network network = checkpoint::read_network(document.root(), {.weights = checkpoint::WeightsInJson::ignore});
  network.check();  // before memory is taken for what makes no network
  network.initialize(seed);
  return network;
}

bool holds_network(const std::string& path) {
  const FileForm form = detect_form(path);
  if (form == FileForm::safetensors || form == FileForm::gguf) {
    return checkpoint::holds_network(files::TensorFile::open(path));
  }
  return form != FileForm::huggingface;
}

Network load_network(const std::string& path, const LoadOptions& options) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw UnsupportedError(fmt::format("{}: a folder holds a language model, not a network of layers", path));
  }
  const MappedFile file = MappedFile::open(path, options.eager ? Reading::eager : Reading::automatic);
  const files::FormByStart start = files::detect_by_start(file.bytes(), path);
  if (!start.json) {
    if (start.form == FileForm::entity) return checkpoint::read_entity(file.bytes(), path, options.fp4).network;
    const files::TensorFile tensors = files::TensorFile::open(path, options.eager);
    if (checkpoint::holds_network(tensors)) return checkpoint::read_tensors(tensors, options.fp4);
    throw UnsupportedError(
        fmt::format("{}: this {} file holds tensors, not a network of layers", path, name(start.form)));
  }
  const JsonDocument document = JsonDocument::parse(file.text(), path, kJson);
  const FileForm form = files::detect_json(document.root());
  Network network = checkpoint::read_network(document.root(), {.fp4 = options.fp4});
  if (form == FileForm::architecture && options.seed) {
    network.check();
    network.initialize(*options.seed);
  }
  return network;
}

void save_network(const Network& network, const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension();
  if (extension == ".json") return save_checkpoint(network, path);
  if (extension == ".entity") return checkpoint::save_entity(path, network);
  if (extension == ".safetensors" || extension == ".gguf") return checkpoint::save_tensors(path, network);
  throw UsageError(fmt::format("{}: a network is saved as .json, .entity, .safetensors or .gguf", path));
}

}  // namespace imago
