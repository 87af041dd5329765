// Compares two networks layer by layer.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "imago/precision.h"
#include "layers/layer_functions.h"
#include "precision/measures.h"

namespace imago {

namespace {

/// The type of its weights; "mixed" if inner layers differ.
std::string type_in_layer(const Layer& layer) {
  std::string type;
  layers::for_each_layer(layer, [&](const Layer& inner) {
    if (!inner.weights) return;
    const std::string_view own = inner.config.dtype.name();
    type = type.empty() || type == own ? std::string(own) : "mixed";
  });
  return type.empty() ? std::string(layer.config.dtype.name()) : type;
}

/// The weights it computes with, including those of inner layers in order.
std::vector<float> weights_in_layer(const Layer& layer) {
  std::vector<float> weights;
  layers::for_each_layer(layer, [&](const Layer& inner) {
    if (!inner.weights) return;
    const std::vector<float> part = inner.weights->active(inner.config.scheme());
    weights.insert(weights.end(), part.begin(), part.end());
  });
  return weights;
}

std::string layer_path(const Network& network, const Coordinates& at) {
  return fmt::format("layers.{}", network.index(at));
}

void measure_layers(const Layer& a, const Layer& b, ComparedTensor& row) {
  const std::vector<float> ours = weights_in_layer(a), theirs = weights_in_layer(b);
  row.weights = ours.size();
  if (a.config.type != b.config.type) {
    row.problem = fmt::format("{} and {}", row.layer_a, row.layer_b);
  } else if (ours.size() != theirs.size()) {
    row.problem = fmt::format("{} and {} weights", ours.size(), theirs.size());
  } else if (ours.empty()) {
    row.rmse = 0;
  } else {
    precision::DistortionSums sums;
    sums.add(ours, theirs);
    if (sums.not_finite() == 0) {
      row.rmse = sums.rmse();
      row.relative_rmse = sums.relative_rmse();
    } else {
      row.problem = fmt::format("{} of {} pairs of values are not finite", sums.not_finite(), ours.size());
    }
  }
}

ComparedModel describe_network(const Network& network, std::span<const std::string> shared) {
  ComparedModel model;
  std::map<std::string, std::uint64_t> weights;
  for (const NamedLayer& named : named_layers(network)) {
    if (!named.layer->weights) continue;
    const std::uint64_t count = named.layer->weights->count();
    model.parameters += count;
    model.bytes += precision::layer_bytes(*named.layer);
    weights[std::string(named.layer->config.dtype.name())] += count;
  }
  model.type = precision::main_type(weights);
  for (std::size_t i = 0; i < network.layers().size(); ++i) {
    const std::string path = layer_path(network, network.layers()[i].at);
    if (std::ranges::find(shared, path) == shared.end()) model.only.push_back(path);
  }
  return model;
}

}  // namespace

ModelComparison compare_layers(const Network& a, const Network& b, bool strict_dtype) {
  const NetworkComparison found = compare_networks(a, b, strict_dtype);
  ModelComparison comparison;
  comparison.of_networks = true;
  comparison.overall = found.overall;
  std::vector<std::string> shared_a, shared_b;
  for (const NetworkComparison::Overlap& overlap : found.overlaps) {
    const Layer& ours = a.layers()[a.index(overlap.at)];
    const Layer& theirs = b.layers()[b.index(overlap.at)];
    ComparedTensor row{
        .name = layer_path(a, overlap.at), .type_a = type_in_layer(ours), .type_b = type_in_layer(theirs)};
    row.layer_a = name(ours.config.type);
    row.layer_b = name(theirs.config.type);
    layers::for_each_layer(ours, [&](const Layer& inner) { row.bytes_a += precision::layer_bytes(inner); });
    layers::for_each_layer(theirs, [&](const Layer& inner) { row.bytes_b += precision::layer_bytes(inner); });
    row.cosine = overlap.similarity;
    measure_layers(ours, theirs, row);
    shared_a.push_back(row.name);
    shared_b.push_back(layer_path(b, overlap.at));
    comparison.tensors.push_back(std::move(row));
  }
  for (const LogicShift& shift : found.logic_shifts) {
    comparison.logic_shifts.push_back({.source = layer_path(a, shift.source),
                                       .target = layer_path(b, shift.target),
                                       .source_at = shift.source,
                                       .target_at = shift.target,
                                       .overlap = shift.overlap});
  }
  comparison.a = describe_network(a, shared_a);
  comparison.b = describe_network(b, shared_b);
  return comparison;
}

}  // namespace imago
