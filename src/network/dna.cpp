// Networks compared by the directions of their weights.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "imago/network.h"
#include "layers/layer_functions.h"

namespace imago {

namespace {

constexpr float kShift = 0.8f;  // similarity above which a layer counts as found elsewhere

/// In double, in eight independent sums; always in the same order.
double dot(std::span<const float> a, std::span<const float> b) {
  std::array<double, 8> sums{};
  std::size_t i = 0;
  for (; i + sums.size() <= a.size(); i += sums.size()) {
    for (std::size_t k = 0; k < sums.size(); ++k) sums[k] += static_cast<double>(a[i + k]) * b[i + k];
  }
  for (; i < a.size(); ++i) sums[0] += static_cast<double>(a[i]) * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void normalize(std::vector<float>& values) {
  const double length = std::sqrt(dot(values, values));
  if (length == 0) return;
  for (float& value : values) value = static_cast<float>(value / length);
}

std::vector<float> direction_of(const Layer& layer) {
  if (layer.weights) {
    std::vector<float> weights = layer.weights->active(layer.config.scheme());
    normalize(weights);
    return weights;
  }
  if (layer.observed != nullptr) return direction_of(*layer.observed);
  std::vector<float> joined;
  layers::for_each_child(layer, [&](const Layer& child) {
    if (child.config.is_remote_link) return;
    const std::vector<float> part = direction_of(child);
    joined.insert(joined.end(), part.begin(), part.end());
  });
  if (joined.empty()) return {1.0f};
  normalize(joined);
  return joined;
}

bool is_zero(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return value == 0; });
}

bool has_place(const Network& network, const Coordinates& at) {
  return at.z < network.depth() && at.y < network.rows() && at.x < network.cols() && at.l < network.layers_per_cell();
}

/// The layer of `others` that is most like `layer`; its own place wins ties, then the first.
std::optional<LogicShift> find_shift(const LayerSignature& layer, std::span<const LayerSignature> others,
                                     bool strict_dtype) {
  const LayerSignature* best = nullptr;
  float overlap = 0;
  for (const LayerSignature& other : others) {
    if (other.direction.size() != layer.direction.size()) continue;
    const float found = similarity(layer, other, strict_dtype);
    if (best != nullptr && !(found > overlap || (found == overlap && other.at == layer.at))) continue;
    best = &other;
    overlap = found;
  }
  if (best == nullptr || !(overlap > kShift) || best->at == layer.at) return std::nullopt;
  return LogicShift{layer.at, best->at, overlap};
}

}  // namespace

std::vector<LayerSignature> extract_dna(const Network& network) {
  std::vector<LayerSignature> signatures;
  signatures.reserve(network.layers().size());
  for (const Layer& layer : network.layers()) {
    signatures.push_back({layer.at, layer.config.type, layer.config.dtype, direction_of(layer)});
  }
  return signatures;
}

float similarity(const LayerSignature& a, const LayerSignature& b, bool strict_dtype) {
  if (a.type != b.type || a.direction.size() != b.direction.size()) return 0;
  if (strict_dtype && a.dtype != b.dtype) return 0;
  const bool a_zero = is_zero(a.direction), b_zero = is_zero(b.direction);
  if (a_zero || b_zero) return a_zero && b_zero ? 1.0f : 0.0f;
  return std::clamp(static_cast<float>(dot(a.direction, b.direction)), -1.0f, 1.0f);
}

NetworkComparison compare_networks(const Network& a, const Network& b, bool strict_dtype) {
  const std::vector<LayerSignature> ours = extract_dna(a), theirs = extract_dna(b);
  NetworkComparison result;
  double sum = 0;
  for (const LayerSignature& layer : ours) {
    if (!has_place(b, layer.at)) continue;
    const float overlap = similarity(layer, theirs[b.index(layer.at)], strict_dtype);
    result.overlaps.push_back({layer.at, overlap});
    sum += overlap;
  }
  if (!result.overlaps.empty()) result.overall = static_cast<float>(sum / static_cast<double>(result.overlaps.size()));

  std::vector<std::optional<LogicShift>> shifts(ours.size());
  parallel_for_dynamic(ours.size(), 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) shifts[i] = find_shift(ours[i], theirs, strict_dtype);
  });
  for (const std::optional<LogicShift>& shift : shifts) {
    if (shift) result.logic_shifts.push_back(*shift);
  }
  return result;
}

}  // namespace imago
