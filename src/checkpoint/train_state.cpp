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
//
// `__metadata__` has `imago` = "train state 1", `dtype.PATH` for each layer with weights and, beside a `memory`,
// `settings`: the network as a checkpoint without weights.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "checkpoint/layer_paths.h"
#include "checkpoint/train_state_layers.h"
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
  void add_numbered(std::string_view prefix, std::span<const Optimizer::Moment> list) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      add(fmt::format("{}{:08}.{}", prefix, i, list[i].name), SafetensorsType::f32,
          std::span<const float>(list[i].values));
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

/// "moments." of `moments.00000003.NAME`: names and values in the order of their numbers.
std::vector<Optimizer::Moment> read_numbered(const SafetensorsFile& file, std::string_view prefix) {
  const std::size_t start = prefix.size() + std::string_view("00000000.").size();
  std::vector<Optimizer::Moment> all;
  for (const SafetensorsTensor& tensor : file.tensors()) {  // sorted by name, so by their number
    if (!tensor.name.starts_with(prefix) || tensor.name.size() < start) continue;
    all.push_back({tensor.name.substr(start), read_list<float>(file, tensor.name, SafetensorsType::f32)});
  }
  return all;
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
  if (file.find("memory") != nullptr) state.memory = read_list<std::uint64_t>(file, "memory", SafetensorsType::u64);
  state.moments = read_numbered(file, "moments.");
  state.best_weights = read_numbered(file, "best.");
  for (const Optimizer::Moment& best : state.best_weights) {
    if (!std::ranges::all_of(best.values, [](float weight) { return std::isfinite(weight); })) {
      throw FormatError(file.path(), 8, fmt::format("the best weights {} are not all finite", best.name));
    }
  }
  return state;
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
  writer.add_numbered("moments.", state.moments);
  writer.add_numbered("best.", state.best_weights);
  std::vector<std::pair<std::string, std::string>> metadata = {{"imago", std::string(kMark)}};
  std::map<std::string, std::vector<float>> scales;  // until they are written
  const auto add_scales = [&](const std::string& place, std::vector<float> values) {
    const std::vector<float>& kept = scales[place] = std::move(values);
    writer.add(place, SafetensorsType::f32, std::span<const float>(kept));
  };
  checkpoint::for_each_path(network, [&](const std::string& place, const Layer& layer) {
    if (!layer.weights) return;
    metadata.emplace_back("dtype." + place, name(layer.config.dtype));
    writer.add("weights." + place, SafetensorsType::f32, layer.weights->master());
    std::vector<float> fixed = fixed_scales(layer);
    if (!fixed.empty()) add_scales("scales." + place, std::move(fixed));
    for (const DTypeInfo& other : kDTypes) {
      const std::optional<float> scale = layer.weights->explicit_scale(other.id);
      if (scale && other.id != layer.config.dtype) add_scales(other_scale(place, other.id), {*scale});
    }
  });
  if (!state.memory.empty()) {
    writer.add("memory", SafetensorsType::u64, std::span<const std::uint64_t>(state.memory));
    metadata.emplace_back("settings", settings_text(network));
  }
  writer.write(path, std::move(metadata));
}

TrainState load_train_state(const std::string& path, Network& network) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  if (metadata_of(file, "imago") != kMark) {
    throw FormatError(path, 8, "this is no state of training, as `imago train --state` writes it");
  }
  TrainState state = read_state(file);
  restore_layers(file, network);
  return state;
}

}  // namespace imago
