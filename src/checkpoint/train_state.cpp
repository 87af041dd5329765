// Training on disk: a safetensors file, since it holds floats by name and other programs can look into it.
//
// | tensor | content |
// |---|---|
// | `counters` U64 [5] | steps, optimizer steps, skipped steps, seed, epochs without gain |
// | `losses` F64 [2] | sum of the unfinished epoch, best validation |
// | `epoch_loss`, `validation_loss` F64 [n] | of the epochs so far |
// | `memory` U64 [n] | Network::memory, where there is one |
// | `moments.00000003.NAME` F32 | of the optimizer, in its order |
// | `best.00000003.NAME` F32 | weights of the best epoch, with patience |
// | `weights.PATH` F32 | master of a layer |
// | `scales.PATH` F32 | its scales, where they are fixed: derived ones are derived again |
// | `scale.PATH.TYPE` F32 [1] | its fixed scale of a type that it does not have now, but may get back by a rule |
// | `zeros.PATH`, `zero.PATH.TYPE` F32 | zero points beside these, where they are not 0 |
//
// `__metadata__` has `imago` = "train state 1", `dtype.PATH` for each layer with weights and, beside a `memory`,
// `settings`: the network as a checkpoint without weights.

#include "imago/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/layer_fields.h"
#include "imago/error.h"
#include "imago/network.h"
#include "imago/train.h"
#include "quant/scheme.h"

namespace imago {

namespace {

constexpr std::string_view kMark = "train state 1";

/// One of the three types of values in such a file.
template <class T>
constexpr SafetensorsType kTypeOf = std::is_same_v<T, float>    ? SafetensorsType::f32
                                    : std::is_same_v<T, double> ? SafetensorsType::f64
                                                                : SafetensorsType::u64;

FormatError wrong(const SafetensorsFile& file, const std::string& problem) {
  return FormatError(file.path(), 8, problem);
}

/// All values of a tensor. Throws FormatError if it is absent or of another type.
template <class T>
std::vector<T> read_list(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor& tensor = file.require(name);
  if (tensor.type != kTypeOf<T>) {
    throw wrong(file, fmt::format("{} is {}, not {}", name, imago::name(tensor.type), imago::name(kTypeOf<T>)));
  }
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

void expect_finite(const SafetensorsFile& file, std::span<const float> values, std::string_view what) {
  if (std::ranges::all_of(values, [](float value) { return std::isfinite(value); })) return;
  throw wrong(file, fmt::format("{} are not all finite", what));
}

/// Empty if there is none.
std::string metadata_of(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata()) {
    if (name == key) return value;
  }
  return {};
}

/// The tensor with the scale of a type that a layer does not have now, and with its zero point.
std::string other_scale(std::string_view path, DType dtype) { return fmt::format("scale.{}.{}", path, name(dtype)); }
std::string other_zero(std::string_view path, DType dtype) { return fmt::format("zero.{}.{}", path, name(dtype)); }

/// The values of a tensor that may be absent.
std::vector<float> find_list(const SafetensorsFile& file, const std::string& name) {
  return file.find(name) == nullptr ? std::vector<float>() : read_list<float>(file, name);
}

using Settings = std::map<std::string, LayerConfig>;

FormatError other_network(const SafetensorsFile& file, const std::string& problem) {
  return wrong(file, fmt::format("this state belongs to another network: {}", problem));
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
  if (weights && restored.config.type == restored.layer->config.type) return weights->shape();
  try {
    return weight_shape(restored.config);
  } catch (const Error& error) {
    throw wrong(file, fmt::format("settings of {}: {}", path, error.what()));
  }
}

void set_single(WeightStore& store, Format format, const ScaleValues& values) {
  if (values.scales.size() != 1 || values.zero_points.size() > 1) {
    throw UsageError(fmt::format("{} scales and {} zero points of {}, not 1", values.scales.size(),
                                 values.zero_points.size(), format.name()));
  }
  store.set_scale(format, values.scales.front(), values.zero_points.empty() ? 0 : values.zero_points.front());
}

void restore_scales(const ScaleValues& values, Restored& restored) {
  const Scheme scheme = restored.config.scheme();
  if (scheme.granularity == Granularity::tensor) {
    set_single(*restored.weights, scheme.format, values);
  } else {
    restored.weights->set_scales(scheme, values.scales, values.zero_points);
  }
}

Restored read_layer(const SafetensorsFile& file, const std::string& path, LayerConfig config, Layer& layer) {
  const std::string dtype = metadata_of(file, "dtype." + path);
  if (dtype.empty()) throw other_network(file, fmt::format("it knows no weights of {}", path));
  try {
    config.dtype = checkpoint::parse_stored_format(dtype);
  } catch (const UsageError&) {
    throw wrong(file, fmt::format("dtype.{} is '{}', which is not a type", path, dtype));
  }
  const std::vector<float> master = read_list<float>(file, "weights." + path);
  Restored restored{&layer, std::move(config), {}};
  const WeightShape shape = shape_of(file, path, restored);
  if (shape.cols == 0 || master.size() % shape.cols != 0 || master.size() / shape.cols != shape.rows) {
    throw other_network(file, fmt::format("it has {} weights of {}, not {}", master.size(), path, shape.count()));
  }
  expect_finite(file, master, "weights." + path);
  restored.weights.emplace(shape).set_master(master);
  try {
    if (file.find("scales." + path) != nullptr) {
      restore_scales({read_list<float>(file, "scales." + path), find_list(file, "zeros." + path)}, restored);
    }
    for (const DTypeInfo& other : kDTypes) {
      if (file.find(other_scale(path, other.id)) == nullptr) continue;
      set_single(*restored.weights, other.id,
                 {read_list<float>(file, other_scale(path, other.id)), find_list(file, other_zero(path, other.id))});
    }
  } catch (const FormatError&) {
    throw;
  } catch (const Error& error) {
    throw wrong(file, fmt::format("scales.{} do not fit: {}", path, error.what()));
  }
  return restored;
}

/// Gives every layer its weights, scales and type; its settings too, where the file has them. Throws FormatError, and
/// changes nothing, if they belong to another network.
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

/// The scales that the master does not determine; those of types without scales are carried along.
ScaleValues fixed_scales(const Layer& layer) {
  const Scheme scheme = layer.config.scheme();
  if (!scheme.format.has_scales()) {
    const std::optional<float> given = layer.weights->explicit_scale(scheme.format);
    return given ? ScaleValues{{*given}, {}} : ScaleValues{};
  }
  const std::shared_ptr<const Version> version = layer.weights->morph(scheme);
  if (!version->has_explicit_scale()) return {};
  const std::span<const float> scales = version->scales(), zero_points = version->zero_points();
  return {{scales.begin(), scales.end()}, {zero_points.begin(), zero_points.end()}};
}

/// What to write, and how it comes about when its turn comes: entries are written in the order of their names.
class StateWriter {
 public:
  /// The values must outlive the writer.
  template <class Values>
  void add(const std::string& name, const Values& values) {
    const std::span all(values);
    entries_.push_back({name, kTypeOf<std::ranges::range_value_t<Values>>, Shape{all.size()}});
    bytes_[name] = std::as_bytes(all);
  }
  void add_numbered(std::string_view prefix, std::span<const Optimizer::Moment> list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      add(fmt::format("{}{:08}.{}", prefix, i, list[i].name), list[i].values);
    }
  }
  void write(const std::string& path, std::vector<std::pair<std::string, std::string>> metadata) {
    SafetensorsWriter writer(path, std::move(entries_), std::move(metadata));
    for (const auto& [name, bytes] : bytes_) writer.write(name, bytes);
    writer.commit();
  }

 private:
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, std::span<const std::byte>> bytes_;
};

template <class T, std::size_t kCount>
std::array<T, kCount> read_array(const SafetensorsFile& file, const std::string& name) {
  const std::vector<T> values = read_list<T>(file, name);
  if (values.size() != kCount) {
    throw wrong(file, fmt::format("{} has {} values, not {}", name, values.size(), kCount));
  }
  std::array<T, kCount> array;
  std::ranges::copy(values, array.begin());
  return array;
}

/// "moments." of `moments.00000003.NAME`: names and values in the order of their numbers.
std::vector<Optimizer::Moment> read_numbered(const SafetensorsFile& file, std::string_view prefix) {
  const std::size_t start = prefix.size() + std::string_view("00000000.").size();
  std::vector<Optimizer::Moment> all;
  for (const SafetensorsTensor& tensor : file.tensors()) {  // sorted by name, so by their number
    if (!tensor.name.starts_with(prefix) || tensor.name.size() < start) continue;
    all.push_back({tensor.name.substr(start), read_list<float>(file, tensor.name)});
  }
  return all;
}

TrainState read_state(const SafetensorsFile& file) {
  TrainState state;
  const auto [steps, optimizer_steps, skipped_steps, seed, without_gain] =
      read_array<std::uint64_t, 5>(file, "counters");
  state.steps = steps;
  state.optimizer_steps = optimizer_steps;
  state.skipped_steps = skipped_steps;
  state.seed = seed;
  const bool plausible = state.optimizer_steps <= state.steps && state.skipped_steps <= state.steps &&
                         without_gain <= static_cast<std::uint64_t>(std::numeric_limits<int>::max());
  if (!plausible) throw wrong(file, "counters contradict each other");
  state.epochs_without_gain = static_cast<int>(without_gain);
  const auto [loss_sum, best_validation] = read_array<double, 2>(file, "losses");
  state.epoch_loss_sum = loss_sum;
  state.best_validation = best_validation;
  state.epoch_loss = read_list<double>(file, "epoch_loss");
  state.validation_loss = read_list<double>(file, "validation_loss");
  if (state.validation_loss.size() > state.epoch_loss.size()) {
    throw wrong(file, "there are more validation losses than epochs");
  }
  if (file.find("memory") != nullptr) state.memory = read_list<std::uint64_t>(file, "memory");
  state.moments = read_numbered(file, "moments.");
  state.best_weights = read_numbered(file, "best.");
  for (const Optimizer::Moment& best : state.best_weights) {
    expect_finite(file, best.values, "the best weights " + best.name);
  }
  return state;
}

}  // namespace

void save_train_state(const std::string& path, const Network& network, const TrainState& state) {
  const std::array<std::uint64_t, 5> counters = {state.steps, state.optimizer_steps, state.skipped_steps, state.seed,
                                                 static_cast<std::uint64_t>(state.epochs_without_gain)};
  const std::array<double, 2> losses = {state.epoch_loss_sum, state.best_validation};
  StateWriter writer;
  writer.add("counters", counters);
  writer.add("losses", losses);
  writer.add("epoch_loss", state.epoch_loss);
  writer.add("validation_loss", state.validation_loss);
  writer.add_numbered("moments.", state.moments);
  writer.add_numbered("best.", state.best_weights);
  std::vector<std::pair<std::string, std::string>> metadata = {{"imago", std::string(kMark)}};
  std::map<std::string, std::vector<float>> scales;  // until they are written
  const auto add_scales = [&](const std::string& place, std::vector<float> values) {
    if (values.empty()) return;
    const std::vector<float>& kept = scales[place] = std::move(values);
    writer.add(place, kept);
  };
  checkpoint::for_each_path(network, [&](const std::string& place, const Layer& layer) {
    if (!layer.weights) return;
    metadata.emplace_back("dtype." + place, layer.config.dtype.name());
    writer.add("weights." + place, layer.weights->master());
    ScaleValues fixed = fixed_scales(layer);
    add_scales("scales." + place, std::move(fixed.scales));
    add_scales("zeros." + place, std::move(fixed.zero_points));
    for (const DTypeInfo& other : kDTypes) {
      const std::optional<float> scale = layer.weights->explicit_scale(other.id);
      if (!scale || other.id == layer.config.dtype) continue;
      add_scales(other_scale(place, other.id), {*scale});
      const float zero_point = layer.weights->zero_point(other.id);
      if (zero_point != 0) add_scales(other_zero(place, other.id), {zero_point});
    }
  });
  if (!state.memory.empty()) {
    writer.add("memory", state.memory);
    metadata.emplace_back(
        "settings", checkpoint::network_text(network, files::JsonStyle::compact, checkpoint::LayerContent::settings));
  }
  writer.write(path, std::move(metadata));
}

TrainState load_train_state(const std::string& path, Network& network) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (metadata_of(file, "imago") != kMark) {
    throw FormatError(path, 8, "this is not a training state as `imago train --state` writes it");
  }
  TrainState state = read_state(file);
  restore_layers(file, network);
  return state;
}

}  // namespace imago
