// What a model file says about itself, without its values.

#include "imago/files.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/entity.h"
#include "checkpoint/layer_fields.h"
#include "checkpoint/network_tensors.h"
#include "files/detect.h"
#include "files/gguf.h"
#include "files/hugging_face.h"
#include "files/json_writer.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "layers/layer_functions.h"
#include "models/summary.h"
#include "network/network_state.h"

namespace imago {

namespace {

using files::JsonDocument;

/// Its size and how many layers of which type it has.
void describe(const Network& network, ModelSummary& summary) {
  std::map<std::string, int> types;
  checkpoint::for_each_path(network, [&](const std::string&, const Layer& layer) {
    if (!layer.config.is_remote_link) ++types[std::string(name(layer.config.type))];
  });
  std::string list;
  for (const auto& [type, count] : types) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", files::quote_json(type), count);
  }
  summary.metadata.emplace_back("id", files::quote_json(network.id));
  summary.metadata.emplace_back("depth", std::to_string(network.depth()));
  summary.metadata.emplace_back("rows", std::to_string(network.rows()));
  summary.metadata.emplace_back("cols", std::to_string(network.cols()));
  summary.metadata.emplace_back("layers_per_cell", std::to_string(network.layers_per_cell()));
  summary.metadata.emplace_back("layer_types", fmt::format("{{{}}}", list));
}

/// The weights that an architecture asks for.
std::uint64_t count_weights(const Network& network, const std::string& path) {
  std::uint64_t count = 0;
  checkpoint::for_each_path(network, [&](const std::string& place, const Layer& layer) {
    if (layer.config.is_remote_link || network::is_vacant(layer)) return;
    try {
      count += weight_shape(layer.config).count();
    } catch (const UsageError& error) {
      throw FormatError(path, 0, fmt::format("{}: {}", place, error.what()));
    }
  });
  return count;
}

void inspect_json(const MappedFile& file, ModelSummary& summary) {
  const JsonDocument document =
      JsonDocument::parse(file.text(), file.path(), {.max_depth = files::kMaxCheckpointJsonDepth});
  summary.form = files::detect_json(document.root());
  const Network network = checkpoint::read_network(
      document.root(), {.weights = checkpoint::WeightsInJson::measure, .measured = &summary.tensors});
  describe(network, summary);
  if (summary.form == FileForm::architecture) {
    summary.parameters = count_weights(network, file.path());
  } else {
    for (const TensorSummary& tensor : summary.tensors) summary.parameters += tensor.shape.elements();
  }
}

/// Metadata are shown by programs that read numbers: one beyond float64 must be told here, with its place. The parser
/// bounds the depth.
void check_numbers(const files::JsonValue& value, const std::string& key) {
  if (value.kind() == files::JsonKind::number) value.number(key);
  if (value.kind() == files::JsonKind::array) {
    for (const files::JsonMember& element : value.elements(key)) check_numbers(element.value, key);
  }
  if (value.kind() == files::JsonKind::object) {
    for (const files::JsonMember& member : value.members(key)) check_numbers(member.value, member.key);
  }
}

void inspect_entity(const MappedFile& file, ModelSummary& summary) {
  checkpoint::EntityContents contents = checkpoint::measure_entity(file.bytes(), file.path());
  summary.parameters = contents.parameters;
  summary.tensors = std::move(contents.tensors);
  describe(contents.network, summary);
  if (contents.transformer.empty()) return;
  const JsonDocument transformer = JsonDocument::parse(contents.transformer, file.path());
  check_numbers(transformer.root(), "transformer");
  if (const auto architecture = transformer.root().find("architecture")) {
    summary.architecture = architecture->string("architecture");
  }
  summary.metadata.emplace_back("transformer", contents.transformer);
}

void inspect_gguf(const GgufFile& file, ModelSummary& summary) {
  summary.file_bytes = file.file_bytes();
  if (const GgufValue* architecture = file.find("general.architecture")) {
    if (architecture->string()) summary.architecture = *architecture->string();
  }
  for (const GgufMetadata& entry : file.metadata()) {
    if (entry.key == files::kPackedKey) continue;  // the types of the tensors say it
    summary.metadata.emplace_back(entry.key, files::to_json(entry.value));
  }
  summary.notes.assign(file.notes().begin(), file.notes().end());
}

std::uint64_t bytes_of_files(const std::string& folder) {
  std::uint64_t bytes = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_regular_file(ignored)) bytes += std::filesystem::file_size(entry->path(), ignored);
  }
  return bytes;
}

void inspect_folder(const files::HuggingFaceFolder& folder, ModelSummary& summary) {
  summary.file_bytes = bytes_of_files(folder.path());
  const files::JsonValue config = folder.config().root();
  check_numbers(config, "config.json");
  if (const auto type = config.find("model_type")) summary.architecture = type->string("model_type");
  for (const files::JsonMember& member : config.members("config.json")) {
    summary.metadata.emplace_back(member.key, member.value.source());
  }
  summary.notes.assign(folder.notes().begin(), folder.notes().end());
}

LanguageSummary inspect_language(const files::TensorFile& file) {
  try {
    const models::Summary found = models::summarize(file);
    return {.architecture = found.architecture,
            .problem = {},
            .generates = found.generates,
            .blocks = found.blocks,
            .width = found.width,
            .vocabulary = found.vocabulary,
            .context = found.context,
            .experts = found.experts,
            .experts_used = found.experts_used,
            .active_parameters = found.active_parameters,
            .step_bytes = found.step_bytes,
            .cache_bytes = found.cache_bytes};
  } catch (const Error& error) {
    return {.architecture = {}, .problem = error.what()};
  }
}

/// safetensors, GGUF, folders.
void inspect_tensors(const std::string& path, ModelSummary& summary) {
  const files::TensorFile file = files::TensorFile::open(path);
  summary.form = file.form();
  for (const files::StoredTensor& tensor : file.tensors()) {
    summary.parameters += tensor.shape.elements();
    const std::uint64_t bytes = tensor.stored_bytes();
    summary.tensors.push_back({tensor.name, tensor.type, tensor.shape, bytes});
  }
  for (const auto& [key, value] : file.metadata()) summary.metadata.emplace_back(key, files::quote_json(value));
  if (file.gguf() != nullptr) inspect_gguf(*file.gguf(), summary);
  if (file.folder() != nullptr) inspect_folder(*file.folder(), summary);
  if (!summary.architecture.empty()) summary.language = inspect_language(file);
  if (!checkpoint::holds_network(file)) return;
  std::erase_if(summary.metadata, [](const auto& entry) { return entry.first == checkpoint::kNetworkKey; });
  describe(checkpoint::read_tensors_topology(file), summary);
}

}  // namespace

double ModelSummary::bits_per_weight() const noexcept {
  return parameters == 0 ? 0 : 8 * static_cast<double>(bytes) / static_cast<double>(parameters);
}

ModelSummary inspect_model(const std::string& path) {
  ModelSummary summary;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    inspect_tensors(path, summary);
  } else {
    const MappedFile file = MappedFile::open(path);
    summary.file_bytes = file.bytes().size();
    const files::FormByStart start = files::detect_by_start(file.bytes(), path);
    summary.form = start.form;
    if (start.json) {
      inspect_json(file, summary);
    } else if (start.form == FileForm::entity) {
      inspect_entity(file, summary);
    } else {
      inspect_tensors(path, summary);
    }
  }
  for (const TensorSummary& tensor : summary.tensors) summary.bytes += tensor.bytes;
  return summary;
}

std::vector<NamedLayer> named_layers(const Network& network) {
  std::vector<NamedLayer> layers;
  checkpoint::for_each_path(network, [&](const std::string& path, const Layer& layer) {
    layers.push_back({path, &layer});
  });
  return layers;
}

std::vector<std::pair<std::string, std::vector<float>>> named_gradients(Network& network) {
  // By address, since paths and gradients are walks of different trees: gradients leave meta networks out.
  std::map<const Layer*, const LayerGradient*> gradient_of;
  const std::span<LayerGradient> gradients = network.gradients();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    layers::for_each_gradient(
        network.layers()[i], gradients[i],
        [&](const Layer& layer, const LayerGradient& gradient) { gradient_of[&layer] = &gradient; });
  }

  std::vector<std::pair<std::string, std::vector<float>>> named;
  for (const auto& [path, layer] : named_layers(network)) {
    const bool in_meta_network = path.find(".meta_network.") != std::string::npos;
    if (!layer->weights || in_meta_network) continue;
    const auto found = gradient_of.find(layer);
    std::vector<float> values = found == gradient_of.end() ? std::vector<float>() : found->second->weights;
    values.resize(layer->weights->count());
    named.emplace_back(path, std::move(values));
  }
  return named;
}

}  // namespace imago
