// Measures a network in each of the 21 dtypes.

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "convert/target_types.h"
#include "imago/error.h"
#include "imago/precision.h"
#include "precision/measures.h"

namespace imago {

namespace {

/// A layer with weights as it was before the sweep.
struct LayerState {
  Layer* layer;
  LayerConfig config;
  std::vector<float> weights;  // those it computed with
};

/// Restores the types of the layers, also after an exception.
class KeptTypes {
 public:
  explicit KeptTypes(Network& network) {
    for (const NamedLayer& named : named_layers(network)) {
      // The network is the caller's to change; named_layers only reads.
      Layer& layer = const_cast<Layer&>(*named.layer);
      if (!layer.weights) continue;
      layers_.push_back({&layer, layer.config, layer.weights->active(layer.config.scheme())});
    }
  }
  KeptTypes(const KeptTypes&) = delete;
  KeptTypes& operator=(const KeptTypes&) = delete;
  ~KeptTypes() {
    for (const LayerState& state : layers_) state.layer->config = state.config;
  }
  const std::vector<LayerState>& layers() const noexcept { return layers_; }

 private:
  std::vector<LayerState> layers_;
};

/// Granularity as in ConvertOptions; rows where groups do not fit.
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

std::vector<DType> requested_dtypes(const SweepOptions& options) {
  std::vector<DType> dtypes;
  for (const Format type : options.types) {
    convert::require_holdable(FileForm::checkpoint, type);
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
  const std::vector<DType> dtypes = requested_dtypes(options);
  const KeptTypes kept(network);
  SweepReport report;
  std::map<std::string_view, std::uint64_t> weights;
  for (const LayerState& state : kept.layers()) {
    report.parameters += state.weights.size();
    report.bytes += precision::layer_bytes(*state.layer);
    weights[name(state.config.dtype)] += state.weights.size();
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

double SweepPoint::cost() const noexcept {
  if (divergence) return divergence->mean;
  if (score) return score->loss;
  return relative_rmse.value_or(std::numeric_limits<double>::infinity());
}

std::vector<Format> default_sweep_types() {
  using enum BlockFormat;
  return {DType::float16, DType::bfloat16, q8_0,   DType::fp8e4m3, DType::int8, q6_k,  q5_k, q5_1, q5_0, q4_1,
          q4_k,           iq4_nl,          iq4_xs, q4_0,           nvfp4,       mxfp4, q3_k, q2_k};
}

}  // namespace imago
