// Measures a network in each of many types, by default the 21 dtypes.

#include <limits>
#include <map>
#include <span>
#include <vector>

#include "imago/error.h"
#include "imago/precision.h"
#include "precision/layer_types.h"
#include "precision/measures.h"

namespace imago {

namespace {

/// `weights`: those that each layer computed with.
SweepPoint try_type(const precision::LayerTypes& layers, std::span<const std::vector<float>> weights, Format type,
                    const SweepOptions& options) {
  SweepPoint point;
  point.name = type.name();
  precision::DistortionSums change;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const precision::LayerTypes::Entry& entry = layers.all()[i];
    layers.set(entry, type, options.granularity, options.group);
    point.bytes += precision::layer_bytes(*entry.layer);
    change.add(weights[i], entry.layer->weights->active(entry.layer->config.scheme()));
  }
  if (change.not_finite() == 0) point.relative_rmse = change.relative_rmse();
  return point;
}

std::vector<Format> requested_types(const SweepOptions& options) {
  std::vector<Format> types = options.types;
  if (types.empty()) {
    for (const DTypeInfo& info : kDTypes) types.emplace_back(info.id);
  }
  return types;
}

}  // namespace

SweepReport sweep_network(Network& network, const Dataset* data, const std::optional<Loss>& loss,
                          const SweepOptions& options) {
  if (!options.plans.empty() || !options.calibration.empty()) {
    throw UnsupportedError("plans and calibrations of networks are not swept; morph the network and compare");
  }
  const std::vector<Format> tried = requested_types(options);
  const precision::LayerTypes layers(network);
  SweepReport report;
  std::vector<std::vector<float>> weights;
  std::map<std::string, std::uint64_t> types;
  for (const precision::LayerTypes::Entry& entry : layers.all()) {
    weights.push_back(entry.layer->weights->active(entry.before.scheme()));
    report.parameters += weights.back().size();
    report.bytes += precision::layer_bytes(*entry.layer);
    types[std::string(entry.before.dtype.name())] += weights.back().size();
  }
  if (report.parameters == 0) throw UnsupportedError("no layer has weights, so there is nothing to sweep");
  report.type = precision::main_type(types);
  if (data != nullptr) report.score = score_network(network, *data, loss);
  for (const Format type : tried) {
    SweepPoint& point = report.points.emplace_back(try_type(layers, weights, type, options));
    point.bits_per_weight = bits_per_weight(point.bytes, report.parameters);
    if (data != nullptr) point.score = score_network(network, *data, loss);
    if (options.progress) options.progress(point.name, report.points.size(), tried.size());
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
