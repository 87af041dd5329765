// Training on disk: a safetensors file, since it holds floats by name and other programs can look into it.
//
// | tensor | content |
// |---|---|
// | `counters` U64 [5] | steps, optimizer steps, skipped steps, seed, epochs without gain |
// | `losses` F64 [2] | sum of the unfinished epoch, best validation |
// | `epoch_loss`, `validation_loss` F64 [n] | of the epochs so far |
// | `moments.00000003.NAME` F32 | of the optimizer, in its order |
// | `weights.PATH` F32 | master of a layer |
// | `scales.PATH` F32 | its scales, where they are fixed: derived ones are derived again |
//
// `__metadata__` has `imago` = "train state 1" and `dtype.PATH` for each layer with weights.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "formats/layer_paths.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/train.h"

namespace imago {

namespace {

constexpr std::string_view kMark = "train state 1";

/// The scales that the master does not determine; those of types without scales are carried along.
std::vector<float> fixed_scales(const Layer& layer) {
  const Scheme scheme = layer.config.scheme();
  if (!is_scaled(layer.config.dtype)) return {layer.weights->scale(layer.config.dtype)};
  const std::shared_ptr<const Version> version = layer.weights->morph(scheme);
  if (!version->has_explicit_scale()) return {};
  if (scheme.granularity == Granularity::tensor) return {layer.weights->scale(layer.config.dtype)};
  return {version->scales().begin(), version->scales().end()};
}

/// What to write, and how it comes about when its turn comes: entries are written in the order of their names.
class StateWriter {
 public:
  template <class T>
  void add(const std::string& name, SafetensorsType type, std::span<const T> values) {
    entries_.push_back({name, type, Shape{values.size()}});
    bytes_[name] = std::as_bytes(values);
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

template <class T>
std::vector<T> read_list(const SafetensorsFile& file, const std::string& name, SafetensorsType type) {
  const SafetensorsTensor& tensor = file.require(name);
  if (tensor.type != type) {
    throw FormatError(file.path(), 8, fmt::format("{} is {}, not {}", name, tensor.dtype, imago::name(type)));
  }
  std::vector<T> values(tensor.bytes.size() / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

template <std::size_t Count, class T>
std::array<T, Count> read_array(const SafetensorsFile& file, const std::string& name, SafetensorsType type) {
  const std::vector<T> values = read_list<T>(file, name, type);
  if (values.size() != Count) {
    throw FormatError(file.path(), 8, fmt::format("{} has {} values, not {}", name, values.size(), Count));
  }
  std::array<T, Count> array;
  std::ranges::copy(values, array.begin());
  return array;
}

std::string metadata_of(const SafetensorsFile& file, std::string_view key) {
  for (const auto& [name, value] : file.metadata()) {
    if (name == key) return value;
  }
  return {};
}

TrainState read_state(const SafetensorsFile& file) {
  TrainState state;
  const auto counters = read_array<5, std::uint64_t>(file, "counters", SafetensorsType::u64);
  state.steps = counters[0];
  state.optimizer_steps = counters[1];
  state.skipped_steps = counters[2];
  state.seed = counters[3];
  const bool plausible = state.optimizer_steps <= state.steps && state.skipped_steps <= state.steps &&
                         counters[4] <= static_cast<std::uint64_t>(std::numeric_limits<int>::max());
  if (!plausible) throw FormatError(file.path(), 8, "counters contradict each other");
  state.epochs_without_gain = static_cast<int>(counters[4]);
  const auto losses = read_array<2, double>(file, "losses", SafetensorsType::f64);
  state.epoch_loss_sum = losses[0];
  state.best_validation = losses[1];
  state.epoch_loss = read_list<double>(file, "epoch_loss", SafetensorsType::f64);
  state.validation_loss = read_list<double>(file, "validation_loss", SafetensorsType::f64);
  if (state.validation_loss.size() > state.epoch_loss.size()) {
    throw FormatError(file.path(), 8, "there are more validation losses than epochs");
  }
  for (const SafetensorsTensor& tensor : file.tensors()) {  // sorted by name, so by their number
    constexpr std::string_view kPrefix = "moments.00000000.";
    if (!tensor.name.starts_with("moments.") || tensor.name.size() < kPrefix.size()) continue;
    state.moments.push_back(
        {tensor.name.substr(kPrefix.size()), read_list<float>(file, tensor.name, SafetensorsType::f32)});
  }
  return state;
}

/// What a layer gets from a file.
struct Restored {
  Layer* layer;
  DType dtype;
  WeightStore weights;
};

Restored read_layer(const SafetensorsFile& file, const std::string& path, Layer& layer) {
  const auto refuse = [&](const std::string& problem) {
    return FormatError(file.path(), 8, fmt::format("this state belongs to another network: {}", problem));
  };
  const std::string dtype = metadata_of(file, "dtype." + path);
  if (dtype.empty()) throw refuse(fmt::format("it knows no weights of {}", path));
  const std::optional<DType> type = find_dtype(dtype);
  if (!type) throw FormatError(file.path(), 8, fmt::format("dtype.{} is '{}', which is no type", path, dtype));
  const std::vector<float> master = read_list<float>(file, "weights." + path, SafetensorsType::f32);
  if (master.size() != layer.weights->count()) {
    throw refuse(fmt::format("it has {} weights of {}, not {}", master.size(), path, layer.weights->count()));
  }
  if (!std::ranges::all_of(master, [](float weight) { return std::isfinite(weight); })) {
    throw FormatError(file.path(), 8, fmt::format("weights.{} are not all finite", path));
  }

  Restored restored{&layer, *type, WeightStore(layer.weights->rows(), layer.weights->cols())};
  WeightStore& store = restored.weights;
  store.set_master(master);
  if (file.find("scales." + path) == nullptr) return restored;
  const std::vector<float> scales = read_list<float>(file, "scales." + path, SafetensorsType::f32);
  LayerConfig config = layer.config;
  config.dtype = *type;
  try {
    const Scheme scheme = config.scheme();
    if (scheme.granularity != Granularity::tensor) {
      // Fixed scales of rows and groups come with codes; which ones does not matter, for the master follows.
      const std::shared_ptr<const Version> any = store.morph(scheme);
      store.set_loaded(scheme, any->codes(), scales);
      store.set_master(master);
    } else if (scales.size() == 1) {
      store.set_scale(*type, scales.front());
    } else {
      throw UsageError(fmt::format("{} scales, not 1", scales.size()));
    }
  } catch (const Error& error) {
    throw FormatError(file.path(), 8, fmt::format("scales.{} do not fit: {}", path, error.what()));
  }
  return restored;
}

}  // namespace

void save_train_state(const std::string& path, const Network& network, const TrainState& state) {
  const std::array<std::uint64_t, 5> counters = {state.steps, state.optimizer_steps, state.skipped_steps, state.seed,
                                                 static_cast<std::uint64_t>(state.epochs_without_gain)};
  const std::array<double, 2> losses = {state.epoch_loss_sum, state.best_validation};
  StateWriter writer;
  writer.add("counters", SafetensorsType::u64, std::span<const std::uint64_t>(counters));
  writer.add("losses", SafetensorsType::f64, std::span<const double>(losses));
  writer.add("epoch_loss", SafetensorsType::f64, std::span<const double>(state.epoch_loss));
  writer.add("validation_loss", SafetensorsType::f64, std::span<const double>(state.validation_loss));
  for (std::size_t i = 0; i < state.moments.size(); ++i) {
    writer.add(fmt::format("moments.{:08}.{}", i, state.moments[i].name), SafetensorsType::f32,
               std::span<const float>(state.moments[i].values));
  }
  std::vector<std::pair<std::string, std::string>> metadata = {{"imago", std::string(kMark)}};
  std::map<std::string, std::vector<float>> scales;  // until they are written
  formats::for_each_path(network, [&](const std::string& place, const Layer& layer) {
    if (!layer.weights) return;
    metadata.emplace_back("dtype." + place, name(layer.config.dtype));
    writer.add("weights." + place, SafetensorsType::f32, layer.weights->master());
    std::vector<float> fixed = fixed_scales(layer);
    if (fixed.empty()) return;
    const std::vector<float>& kept = scales[place] = std::move(fixed);
    writer.add("scales." + place, SafetensorsType::f32, std::span<const float>(kept));
  });
  writer.write(path, std::move(metadata));
}

TrainState load_train_state(const std::string& path, Network& network) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (metadata_of(file, "imago") != kMark) {
    throw FormatError(path, 8, "this is no state of training, as `imago train --state` writes it");
  }
  TrainState state = read_state(file);
  std::vector<Restored> layers;
  formats::for_each_path(network, [&](const std::string& place, Layer& layer) {
    if (layer.weights) layers.push_back(read_layer(file, place, layer));
  });
  const auto is_weights = [](const SafetensorsTensor& tensor) { return tensor.name.starts_with("weights."); };
  const auto stored = std::ranges::count_if(file.tensors(), is_weights);
  if (static_cast<std::size_t>(stored) != layers.size()) {
    throw FormatError(path, 8,
                      fmt::format("this state belongs to another network: it has weights of {} layers, not {}", stored,
                                  layers.size()));
  }
  for (Restored& restored : layers) {
    restored.layer->config.dtype = restored.dtype;
    restored.layer->weights = std::move(restored.weights);
  }
  return state;
}

}  // namespace imago
