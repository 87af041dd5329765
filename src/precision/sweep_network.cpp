// A network in each of the 21 dtypes.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "imago/error.h"
#include "imago/precision.h"
#include "precision/distortion_sums.h"
#include "precision/layer_bytes.h"
#include "precision/sweep_points.h"

namespace imago {

namespace {

/// Layers with weights, and the settings that a sweep changes.
struct LayerState {
  Layer* layer;
  DType dtype;
  Granularity granularity;
  int group;
  std::vector<float> weights;  // as it computed with them before
};

/// Gives the layers back what they had, whatever happens.
class KeptTypes {
 public:
  explicit KeptTypes(Network& network) {
    for (const NamedLayer& named : named_layers(network)) {
      // The network is the caller's to change; named_layers only looks.
      Layer& layer = const_cast<Layer&>(*named.layer);
      if (!layer.weights) continue;
      const LayerConfig& config = layer.config;
      layers_.push_back(
          {&layer, config.dtype, config.granularity, config.group, layer.weights->active(config.scheme())});
    }
  }
  KeptTypes(const KeptTypes&) = delete;
  KeptTypes& operator=(const KeptTypes&) = delete;
  ~KeptTypes() {
    for (const LayerState& state : layers_) {
      state.layer->config.dtype = state.dtype;
      state.layer->config.granularity = state.granularity;
      state.layer->config.group = state.group;
    }
  }
  const std::vector<LayerState>& layers() const noexcept { return layers_; }

 private:
  std::vector<LayerState> layers_;
};

/// Where scales sit is said as ConvertOptions says it; groups that do not fit become rows.
void take_dtype(Layer& layer, DType dtype, const SweepOptions& options) {
  layer.config.dtype = dtype;
  if (!is_scaled(dtype)) return;
  const bool groups = options.granularity == Granularity::group;
  const bool fits = !groups || layer.weights->cols() % static_cast<std::size_t>(options.group) == 0;
  layer.config.granularity = fits ? options.granularity : Granularity::row;
  layer.config.group = groups && fits ? options.group : 0;
}

SweepPoint try_dtype(const KeptTypes& kept, DType dtype, const SweepOptions& options) {
  SweepPoint point;
  point.name = name(dtype);
  precision::DistortionSums change;
  std::uint64_t weights = 0;
  for (const LayerState& state : kept.layers()) {
    take_dtype(*state.layer, dtype, options);
    point.bytes += precision::layer_bytes(*state.layer);
    weights += state.weights.size();
    change.add(state.weights, state.layer->weights->active(state.layer->config.scheme()));
  }
  if (weights != 0) point.bits_per_weight = 8.0 * static_cast<double>(point.bytes) / static_cast<double>(weights);
  if (change.not_finite() == 0) point.relative_rmse = change.relative_rmse();
  return point;
}

std::vector<DType> wanted_dtypes(const SweepOptions& options) {
  std::vector<DType> dtypes;
  for (const Format type : options.types) {
    if (type.is_block()) {
      throw UnsupportedError(fmt::format(
          "a network of layers cannot hold {}: its layers have one of the 21 dtypes ('imago dtypes' lists them)",
          type.name()));
    }
    dtypes.push_back(type.dtype());
  }
  if (dtypes.empty()) {
    for (const DTypeInfo& info : kDTypes) dtypes.push_back(info.id);
  }
  return dtypes;
}

}  // namespace

SweepReport sweep_network(Network& network, const Dataset* data, const std::optional<Loss>& loss,
                          const SweepOptions& options) {
  if (!options.plans.empty() || !options.calibration.empty()) {
    throw UnsupportedError("plans and calibrations of networks are not swept; morph the network and compare");
  }
  const std::vector<DType> dtypes = wanted_dtypes(options);
  const KeptTypes kept(network);
  SweepReport report;
  std::map<std::string_view, std::uint64_t> weights;
  for (const LayerState& state : kept.layers()) {
    report.parameters += state.weights.size();
    report.bytes += precision::layer_bytes(*state.layer);
    weights[name(state.dtype)] += state.weights.size();
  }
  if (report.parameters == 0) throw UnsupportedError("no layer has weights, so there is nothing to sweep");
  report.type = std::ranges::max_element(weights, {}, [](const auto& entry) { return entry.second; })->first;
  if (data != nullptr) report.score = score_network(network, *data, loss);
  for (const DType dtype : dtypes) {
    SweepPoint& point = report.points.emplace_back(try_dtype(kept, dtype, options));
    if (data != nullptr) point.score = score_network(network, *data, loss);
    if (options.progress) options.progress(point.name, report.points.size(), dtypes.size());
  }
  precision::mark_front(report.points);
  return report;
}

}  // namespace imago
