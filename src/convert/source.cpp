#include "convert/source.h"

#include <fmt/format.h>

#include <algorithm>
#include <list>

#include "base/atomic_file.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/decoder_network.h"
#include "checkpoint/entity.h"
#include "checkpoint/network_import.h"
#include "checkpoint/network_tensors.h"
#include "convert/target_types.h"
#include "files/json.h"
#include "files/tensor_file.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "quant/packed_array.h"

namespace imago::convert {

namespace {

// ---- networks

/// A network and its weights as stored tensors.
struct OpenNetwork {
  std::string path;
  std::optional<checkpoint::Entity> entity;              // of a network file; only .entity files fill all of it
  std::optional<ImportedNetwork> imported;               // of layers that were made of tensors
  std::list<files::StoredTensor> tensors;                // a list: recipes point to its elements
  std::vector<std::shared_ptr<const Version>> versions;  // what their bytes lie in
  std::optional<MappedFile> file;                        // what the blobs of a decoder lie in
};

/// The weights of a layer as a file would hold them.
files::StoredTensor& add_layer(OpenNetwork& open, const Layer& layer, const std::string& path) {
  const WeightStore& store = *layer.weights;
  const Scheme scheme = layer.config.scheme();
  files::StoredTensor& tensor = open.tensors.emplace_back();
  tensor.name = path;
  // Blocks and vectors are no single tensor: seen from outside, such an array is what it decodes to.
  const bool parts = has_parts(scheme.format, store.shape());
  tensor.format = parts ? DType::float32 : scheme.format;
  tensor.type = tensor.format->name();
  tensor.shape = store.rows() == 1 ? Shape{store.cols()} : Shape{store.rows(), store.cols()};
  tensor.file = open.path;
  const std::shared_ptr<const Version> version = parts ? nullptr : store.morph(scheme);
  tensor.bytes = version ? version->codes() : std::as_bytes(store.master());
  if (version) {
    tensor.scale_values.assign(version->scales().begin(), version->scales().end());
    tensor.scale_group = version->scale_group();
    tensor.zero_points.assign(version->zero_points().begin(), version->zero_points().end());
    open.versions.push_back(version);
  }
  return tensor;
}

void set_scheme(models::TensorRecipe& recipe, const Layer& layer) {
  const WeightStore& store = *layer.weights;
  recipe.scheme = layer.config.scheme();
  recipe.array = store.shape();
  recipe.layer_bytes = stored_bytes(*recipe.scheme, store.shape());
}

/// Every layer with weights under its path ("layers.0.sequential_layers.1"), in its own type.
void describe_layers(OpenNetwork& open, const Network& network, Source& source) {
  source.recipe.is_network = true;
  for (const NamedLayer& named : named_layers(network)) {
    if (!named.layer->weights) continue;
    const files::StoredTensor& tensor = add_layer(open, *named.layer, named.path);
    models::TensorRecipe& recipe = source.recipe.tensors.emplace_back();
    recipe.name = named.path;
    recipe.shape = tensor.shape;
    recipe.parts = {{&tensor, 0, tensor.rows(), named.layer->weights->master()}};
    set_scheme(recipe, *named.layer);
    const bool entity_norm =
        source.recipe.target == FileForm::entity && named.layer->config.type == LayerType::rms_norm;
    if (entity_norm) recipe.stored_as = DType::float32;
    LayerConfig in_blocks = named.layer->config;
    in_blocks.dtype = BlockFormat::entity_q4_0;
    recipe.has_entity_blocks = source.recipe.target == FileForm::entity && checkpoint::has_entity_blocks(in_blocks);
  }
}

/// With what an .entity file had beside its layers. A decoder states the type that its layers have now.
void save_as_entity(const checkpoint::Entity& entity, const std::string& out) {
  if (entity.transformer.empty()) return checkpoint::save_entity(out, entity.network, {}, {}, entity.blocks);
  const files::JsonDocument document = files::JsonDocument::parse(entity.transformer, out);
  std::string transformer = entity.transformer;
  const std::span<const Layer> layers = entity.network.layers();
  const auto attention =
      std::ranges::find(layers, LayerType::multi_head_attention, [](const Layer& layer) { return layer.config.type; });
  const std::optional<files::JsonValue> stated = document.root().find("weight_dtype");
  if (stated && attention != layers.end()) {
    const DType dtype = checkpoint::dtype_beside(attention->config.dtype);
    const bool is_same =
        stated->kind() == files::JsonKind::string && find_dtype(stated->string("weight_dtype")) == dtype;
    if (!is_same) {
      transformer.replace(stated->offset(), stated->source().size(), fmt::format("\"{}\"", name(dtype)));
    }
  }
  checkpoint::save_entity(out, entity.network, transformer, entity.decoder_blobs, entity.blocks);
}

void open_network(const ConvertOptions& options, Source& source) {
  const auto open = std::make_shared<OpenNetwork>();
  open->path = source.path;
  source.owner = open;
  const FileForm target = source.recipe.target;
  if (source.format == FileForm::entity) {
    open->file = MappedFile::open(source.path, options.load.eager ? Reading::eager : Reading::automatic);
    open->entity = checkpoint::read_entity(open->file->bytes(), source.path, options.load.fp4);
  } else {  // any other form that holds one
    open->entity = checkpoint::Entity{load_network(source.path, options.load), {}, {}, {}};
  }
  Network& network = open->entity->network;
  try {
    network.check();
  } catch (const Error& error) {
    throw FormatError(source.path, 0, error.what());
  }
  // The original's file keeps its layout; other formats have no place for what belongs to no layer.
  if (!open->entity->transformer.empty() && target != FileForm::entity) {
    network = checkpoint::decoder_network(std::move(*open->entity), source.path);
  }
  source.sketch = [&network] { return guided::sketch_network(network); };
  describe_layers(*open, network, source);
  source.network = {&network, [state = open.get(), target](const std::string& out) {
                      target == FileForm::entity ? save_as_entity(*state->entity, out)
                                                 : save_network(state->entity->network, out);
                    }};
}

// ---- tensors by name

/// Layers made of the tensors of a file.
void import_layers(const files::TensorFile& file, const ImportOptions& options, Source& source) {
  const auto open = std::make_shared<OpenNetwork>();
  open->path = source.path;
  source.owner = open;
  open->imported = checkpoint::import_network(file, options);
  ImportedNetwork& imported = *open->imported;
  std::vector<std::string>& notes = source.recipe.notes;
  notes = imported.notes;
  if (!imported.unmatched.empty()) {
    notes.push_back(fmt::format("{} tensors belong to no layer and are left out, the first is '{}'",
                                imported.unmatched.size(), imported.unmatched.front()));
  }
  source.sketch = [&imported] { return guided::sketch_network(imported.network); };
  describe_layers(*open, imported.network, source);
  source.network = {&imported.network, [&imported](const std::string& out) { save_network(imported.network, out); }};
}

void open_tensors(const ConvertOptions& options, Source& source) {
  // A network that becomes a folder must be a language model.
  const auto file = std::make_shared<files::TensorFile>(checkpoint::open_model(source.path, options.load));
  const FileForm target = source.recipe.target;
  if (is_network(target)) return import_layers(*file, options.import, source);
  source.owner = file;
  source.sketch = [file = file.get()] { return guided::sketch_model(*file); };
  source.recipe = models::make_recipe(*file, target);
  const bool decoder =
      file->folder() != nullptr || (file->gguf() != nullptr && file->gguf()->find("general.architecture") != nullptr);
  if (!decoder || options.calibration.empty()) return;
  source.traits = models::read_traits(*file);
  const bool to_gguf = target == FileForm::gguf && file->folder() != nullptr;
  const bool to_folder = target == FileForm::huggingface && file->gguf() != nullptr;
  source.naming =
      to_gguf || to_folder ? models::usual_naming(*source.traits, to_gguf) : models::naming_of(*file, *source.traits);
}

}  // namespace

Source open_source(const std::string& path, FileForm target, const ConvertOptions& options) {
  Source source;
  source.path = path;
  source.format = detect_form(path);
  source.recipe.target = target;
  const bool network = is_network(source.format) || (source.format != FileForm::huggingface && holds_network(path));
  const bool imports = !network && is_network(target);
  if (!imports && (options.import.heads != 1 || !options.import.hints.empty())) {
    throw UsageError("a number of heads and hints are for tensors that become a network of layers");
  }
  network&& target != FileForm::huggingface ? open_network(options, source) : open_tensors(options, source);
  return source;
}

}  // namespace imago::convert
