#include "checkpoint/train_state_layers.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_paths.h"

namespace imago {

namespace {

using Settings = std::map<std::string, LayerConfig>;

FormatError other_network(const SafetensorsFile& file, const std::string& problem) {
  return FormatError(file.path(), 8, fmt::format("this state belongs to another network: {}", problem));
}

/// The settings of all layers by their paths; empty if the file has none.
Settings read_settings(const SafetensorsFile& file) {
  Settings settings;
  const std::string text = metadata_of(file, "settings");
  if (text.empty()) return settings;
  const files::JsonDocument json =
      files::JsonDocument::parse(text, file.path() + " (settings)", {.max_depth = files::kMaxCheckpointJsonDepth});
  Network network = checkpoint::read_network(json.root(), {.weights = checkpoint::WeightsInJson::ignore});
  checkpoint::for_each_path(network, [&](const std::string& path, Layer& layer) { settings[path] = layer.config; });
  return settings;
}

/// What a layer gets from a file.
struct Restored {
  Layer* layer;
  LayerConfig config;
  std::optional<WeightStore> weights;
};

/// Rows and columns of the weights: those the layer has, unless a rule made it another one.
WeightShape shape_of(const SafetensorsFile& file, const std::string& path, const Restored& restored) {
  const std::optional<WeightStore>& weights = restored.layer->weights;
  if (weights && restored.config.type == restored.layer->config.type) return {weights->rows(), weights->cols()};
  try {
    return weight_shape(restored.config);
  } catch (const Error& error) {
    throw FormatError(file.path(), 8, fmt::format("settings of {}: {}", path, error.what()));
  }
}

void restore_scales(std::span<const float> scales, std::span<const float> master, Restored& restored) {
  const Scheme scheme = restored.config.scheme();
  WeightStore& store = *restored.weights;
  if (scheme.granularity != Granularity::tensor) {
    // Fixed scales of rows and groups come with codes; which ones does not matter, for the master follows.
    const std::shared_ptr<const Version> any = store.morph(scheme);
    store.set_loaded(scheme, any->codes(), scales);
    store.set_master(master);
  } else if (scales.size() == 1) {
    store.set_scale(restored.config.dtype, scales.front());
  } else {
    throw UsageError(fmt::format("{} scales, not 1", scales.size()));
  }
}

Restored read_layer(const SafetensorsFile& file, const std::string& path, LayerConfig config, Layer& layer) {
  const std::string dtype = metadata_of(file, "dtype." + path);
  if (dtype.empty()) throw other_network(file, fmt::format("it knows no weights of {}", path));
  const std::optional<DType> type = find_dtype(dtype);
  if (!type) throw FormatError(file.path(), 8, fmt::format("dtype.{} is '{}', which is no type", path, dtype));
  config.dtype = *type;
  const std::vector<float> master = read_list<float>(file, "weights." + path, SafetensorsType::f32);
  Restored restored{&layer, std::move(config), {}};
  const WeightShape shape = shape_of(file, path, restored);
  if (shape.cols == 0 || master.size() % shape.cols != 0 || master.size() / shape.cols != shape.rows) {
    throw other_network(file, fmt::format("it has {} weights of {}, not {}", master.size(), path, shape.count()));
  }
  if (!std::ranges::all_of(master, [](float weight) { return std::isfinite(weight); })) {
    throw FormatError(file.path(), 8, fmt::format("weights.{} are not all finite", path));
  }
  restored.weights.emplace(shape.rows, shape.cols).set_master(master);
  try {
    if (file.find("scales." + path) != nullptr) {
      restore_scales(read_list<float>(file, "scales." + path, SafetensorsType::f32), master, restored);
    }
    for (const DTypeInfo& other : kDTypes) {
      if (file.find(other_scale(path, other.id)) == nullptr) continue;
      const auto scale = read_list<float>(file, other_scale(path, other.id), SafetensorsType::f32);
      if (scale.size() != 1) throw UsageError(fmt::format("{} scales of {}, not 1", scale.size(), other.name));
      restored.weights->set_scale(other.id, scale.front());
    }
  } catch (const FormatError&) {
    throw;
  } catch (const Error& error) {
    throw FormatError(file.path(), 8, fmt::format("scales.{} do not fit: {}", path, error.what()));
  }
  return restored;
}

}  // namespace

std::string metadata_of(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata()) {
    if (name == key) return value;
  }
  return {};
}

std::string other_scale(std::string_view path, DType dtype) { return fmt::format("scale.{}.{}", path, name(dtype)); }

std::string settings_text(const Network& network) {
  files::StringSink sink;
  files::JsonWriter json(sink, files::JsonStyle::compact);
  checkpoint::write_network(json, network, checkpoint::LayerContent::settings);
  return std::move(sink.text());
}

void restore_layers(const SafetensorsFile& file, Network& network) {
  const Settings settings = read_settings(file);
  std::vector<Restored> layers;
  std::size_t paths = 0, with_weights = 0;
  checkpoint::for_each_path(network, [&](const std::string& path, Layer& layer) {
    ++paths;
    LayerConfig config = layer.config;
    if (!settings.empty()) {
      const auto found = settings.find(path);
      if (found == settings.end()) throw other_network(file, fmt::format("it knows no layer {}", path));
      config = found->second;
    }
    const bool has_weights = settings.empty() ? layer.weights.has_value() : file.find("weights." + path) != nullptr;
    if (has_weights) {
      ++with_weights;
      layers.push_back(read_layer(file, path, std::move(config), layer));
    } else if (!settings.empty()) {
      layers.push_back({&layer, std::move(config), {}});
    }
  });
  if (!settings.empty() && settings.size() != paths) {
    throw other_network(file, fmt::format("it has {} layers, not {}", settings.size(), paths));
  }
  const auto is_weights = [](const SafetensorsTensor& tensor) { return tensor.name.starts_with("weights."); };
  const auto stored = static_cast<std::size_t>(std::ranges::count_if(file.tensors(), is_weights));
  if (stored != with_weights) {
    throw other_network(file, fmt::format("it has weights of {} layers, not {}", stored, with_weights));
  }
  for (Restored& restored : layers) {
    restored.layer->config = std::move(restored.config);
    restored.layer->weights = std::move(restored.weights);
  }
}

}  // namespace imago
