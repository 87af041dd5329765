#include "convert/target_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <unordered_map>

#include "files/packed_safetensors.h"
#include "imago/error.h"
#include "imago/files.h"

namespace imago::convert {

namespace {

constexpr std::string_view kArchitectureKey = "general.architecture";
constexpr std::string_view kFileTypeKey = "general.file_type";
constexpr std::string_view kQuantizationKey = "general.quantization_version";
constexpr std::uint32_t kQuantizationVersion = 2;  // of the block layouts, since 2023

bool is_block_quantized(const PlannedTensor& planned) {
  return planned.type.format && planned.type.format->block_values() > 1;
}

const GgufMetadata* find_key(const std::vector<GgufMetadata>& metadata, std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &GgufMetadata::key);
  return found == metadata.end() ? nullptr : &*found;
}

/// Named after the type of most weights. A model is mixed if matrices inside its blocks differ.
std::optional<std::uint32_t> file_type_of(std::span<const PlannedTensor> plan) {
  std::map<Format, std::size_t> all, in_blocks;
  for (const PlannedTensor& planned : plan) {
    if (!planned.type.format || planned.recipe->shape.rank() < 2) continue;
    const models::TensorUse use = planned.recipe->use;
    all[*planned.type.format] += planned.recipe->shape.elements();
    const bool outside = use == models::TensorUse::embedding || use == models::TensorUse::output;
    if (!outside && is_block_quantized(planned)) ++in_blocks[*planned.type.format];
  }
  if (all.empty()) return std::nullopt;
  const auto most = std::ranges::max_element(all, {}, [](const auto& entry) { return entry.second; });
  return gguf_file_type(most->first, in_blocks.size() > 1);
}

std::vector<GgufMetadata> gguf_metadata(const models::ModelRecipe& recipe, std::span<const PlannedTensor> plan) {
  std::vector<GgufMetadata> metadata;
  for (const GgufMetadata& entry : recipe.gguf_metadata) {
    // The target is one file, whatever the source was.
    const bool own = entry.key == kFileTypeKey || entry.key == files::kPackedKey;
    if (!entry.key.starts_with("split.") && !own) metadata.push_back(entry);
  }
  if (find_key(metadata, kArchitectureKey) == nullptr) return metadata;
  if (const auto type = file_type_of(plan)) metadata.push_back({std::string(kFileTypeKey), *type});
  if (std::ranges::any_of(plan, is_block_quantized) && find_key(metadata, kQuantizationKey) == nullptr) {
    metadata.push_back({std::string(kQuantizationKey), kQuantizationVersion});
  }
  return metadata;
}

std::uint32_t alignment_of(const std::vector<GgufMetadata>& metadata) {
  const GgufMetadata* stated = find_key(metadata, "general.alignment");
  if (stated == nullptr) return GgufWriter::kAlignment;
  const std::int64_t value = stated->value.integer().value_or(GgufWriter::kAlignment);
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(value, 8, std::int64_t{1} << 20));
}

void lay_out_gguf(const PlannedTensor& planned, TargetLayout& layout) {
  const files::StoredTensor& source = planned.source();
  const GgufTensorType type = planned.type.format ? gguf_tensor_type(*planned.type.format) : *source.gguf_type;
  layout.gguf.push_back({planned.recipe->name, type, planned.recipe->shape});
}

void lay_out_safetensors(const PlannedTensor& planned, TargetLayout& layout, std::vector<files::PackedTensor>& packed) {
  const models::TensorRecipe& recipe = *planned.recipe;
  if (const auto plain = plain_safetensors_type(planned.type, planned.source())) {
    layout.safetensors.push_back({recipe.name, *plain, recipe.shape});
    return;
  }
  layout.safetensors.push_back({recipe.name, SafetensorsType::u8, Shape{planned.code_bytes}});
  packed.push_back({recipe.name, *planned.type.format, recipe.shape, planned.scheme.granularity, planned.scheme.group,
                    planned.zero_points});
  const auto add = [&](std::string_view suffix) {
    layout.safetensors.push_back(
        {recipe.name + std::string(suffix), SafetensorsType::f32, Shape{planned.scales.count}});
  };
  if (planned.type.scaled) add(files::kScalesSuffix);
  if (planned.zero_points) add(files::kZerosSuffix);
}

}  // namespace

TargetLayout lay_out(const models::ModelRecipe& recipe, std::span<const PlannedTensor> plan) {
  TargetLayout layout;
  if (recipe.is_network) return layout;
  if (recipe.target == FileForm::gguf) {
    for (const PlannedTensor& planned : plan) lay_out_gguf(planned, layout);
    layout.gguf_metadata = gguf_metadata(recipe, plan);
    return layout;
  }
  std::vector<files::PackedTensor> packed;
  for (const PlannedTensor& planned : plan) lay_out_safetensors(planned, layout, packed);
  layout.metadata = recipe.safetensors_metadata;
  if (!packed.empty()) layout.metadata.emplace_back(files::kPackedKey, files::packed_text(packed));
  return layout;
}

// ---- networks

namespace {

/// Collects codes and scales, installs them in the layers of a network and saves it.
class NetworkWriter {
 public:
  NetworkWriter(std::string path, const Source& source, std::span<const PlannedTensor> plan)
      : path_(std::move(path)), source_(source) {
    for (const PlannedTensor& planned : plan) {
      if (!planned.copied) changed_.emplace(planned.recipe->name, &planned);
    }
  }

  void write(std::string_view name, std::span<const std::byte> bytes) {
    std::string_view layer = name;
    for (const std::string_view suffix : {files::kScalesSuffix, files::kZerosSuffix}) {
      if (layer.ends_with(suffix)) layer.remove_suffix(suffix.size());
    }
    if (!changed_.contains(layer)) return;
    std::vector<std::byte>& entry = entries_[std::string(name)];
    entry.insert(entry.end(), bytes.begin(), bytes.end());
  }

  void commit() {
    for (const NamedLayer& named : named_layers(*source_.network->network)) {
      const auto changed = changed_.find(named.path);
      if (changed == changed_.end()) continue;
      const Scheme& scheme = changed->second->scheme;
      Layer& layer = const_cast<Layer&>(*named.layer);  // the network is ours to change; named_layers only reads
      layer.config.dtype = *changed->second->type.format;
      if (changed->second->type.scaled) {
        layer.config.granularity = scheme.granularity;
        layer.config.group = scheme.group;
      }
      if (changed->second->recipe->stored_as) continue;  // the master stays as it is
      // The scales become explicit ones: a file states scales, not how they were found.
      layer.weights->set_loaded(layer.config.scheme(), entries_[named.path], floats(named.path, files::kScalesSuffix),
                                floats(named.path, files::kZerosSuffix));
    }
    source_.network->save(path_);
  }

 private:
  std::vector<float> floats(const std::string& path, std::string_view suffix) {
    const std::vector<std::byte>& bytes = entries_[path + std::string(suffix)];
    std::vector<float> values(bytes.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  std::string path_;
  const Source& source_;
  std::map<std::string, const PlannedTensor*, std::less<>> changed_;  // by the path of the layer; copied ones stay
  std::map<std::string, std::vector<std::byte>, std::less<>> entries_;
};

}  // namespace

// ---- any target

template <class Writer>
void TargetWriter::use(std::shared_ptr<Writer> writer) {
  write_ = [writer](std::string_view name, std::span<const std::byte> bytes) { writer->write(name, bytes); };
  commit_ = [writer] { writer->commit(); };
  if constexpr (!std::is_same_v<Writer, NetworkWriter>) {  // the others have an order of their own
    std::unordered_map<std::string, Due> by_name;
    for (const Due& due : due_) by_name.emplace(due.name, due);
    due_.clear();
    for (const auto& entry : writer->entries()) due_.push_back(by_name.at(entry.name));
  }
}

TargetWriter::TargetWriter(const std::string& path, const Source& source, std::span<const PlannedTensor> plan,
                           std::uint64_t shard_bytes) {
  const models::ModelRecipe& recipe = source.recipe;
  TargetLayout layout = lay_out(recipe, plan);
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const std::string& name = plan[i].recipe->name;
    due_.push_back({name, i, Due::Part::codes});
    if (plan[i].type.scaled) due_.push_back({name + std::string(files::kScalesSuffix), i, Due::Part::scales});
    if (plan[i].zero_points) due_.push_back({name + std::string(files::kZerosSuffix), i, Due::Part::zero_points});
  }
  try {
    if (recipe.is_network) {
      use(std::make_shared<NetworkWriter>(path, source, plan));
    } else if (recipe.target == FileForm::gguf) {
      const std::uint32_t alignment = alignment_of(layout.gguf_metadata);
      use(std::make_shared<GgufWriter>(path, std::move(layout.gguf_metadata), std::move(layout.gguf),
                                       std::bit_floor(alignment)));
    } else if (recipe.target == FileForm::safetensors) {
      use(std::make_shared<SafetensorsWriter>(path, std::move(layout.safetensors), std::move(layout.metadata)));
    } else {
      use(std::make_shared<files::HuggingFaceWriter>(path, std::move(layout.safetensors), recipe.side_files,
                                                     std::move(layout.metadata), shard_bytes));
    }
  } catch (const UsageError& error) {
    // The names came from a file, not from the command line.
    throw UnsupportedError(fmt::format("{}: {}", path, error.what()));
  }
}

}  // namespace imago::convert
