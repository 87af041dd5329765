#include "layers/meta_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "imago/error.h"
#include "quant/packed_array.h"
#include "weights/random.h"

namespace imago::layers {

namespace {

constexpr double kActive = 1e-6;  // magnitudes above count as active; averages below are too small for a ratio

/// The latest input deviates more than `threshold` times as much as the one two before it.
bool is_storm(double threshold, const std::deque<TensorStats>* history) {
  if (history == nullptr || history->size() < 3) return false;
  const double older = (*history)[history->size() - 3].deviation;
  return older != 0 && history->back().deviation / (older + 1e-8) > threshold;
}

bool is_drift(double threshold, const Observation& seen) {
  const double in = std::abs(seen.input.average);
  return in >= kActive && std::abs(std::abs(seen.output.average) / in - 1) > threshold;
}

}  // namespace

template <class T>
TensorStats stats_of(const Tensor<T>& tensor) {
  TensorStats stats;
  stats.total = tensor.size();
  if (stats.total == 0) return stats;
  double sum = 0, squares = 0;
  stats.maximum = stats.minimum = tensor[0];
  for (const T element : tensor.values()) {
    const double value = element;
    sum += value;
    squares += value * value;
    stats.maximum = std::max(stats.maximum, value);
    stats.minimum = std::min(stats.minimum, value);
    if (std::abs(value) > kActive) ++stats.active;
  }
  const double count = static_cast<double>(stats.total);
  stats.average = sum / count;
  stats.deviation = std::sqrt(std::max(0.0, squares / count - stats.average * stats.average));
  return stats;
}

template TensorStats stats_of(const Tensor<float>&);
template TensorStats stats_of(const Tensor<double>&);

void remember_input(const TensorStats& stats, Run& run) {
  if (run.grid == nullptr) return;
  std::deque<TensorStats>& history = run.grid->history();
  history.push_back(stats);
  while (history.size() > kMetaHistory) history.pop_front();
}

bool condition_holds(const MetaRule& rule, const Observation& seen) {
  const TensorStats& out = seen.output;
  switch (rule.condition) {
    case 1: return out.deviation > rule.threshold;
    case 2: return out.deviation < rule.threshold;
    case 3: return std::abs(out.average) > rule.threshold;
    case 4: return std::abs(out.average) < rule.threshold;
    case 5: return std::abs(out.maximum) > rule.threshold;
    case 6: return out.total > 0 && static_cast<double>(out.active) / static_cast<double>(out.total) < rule.threshold;
    case 7: return is_storm(rule.threshold, seen.history);
    case 8: return is_drift(rule.threshold, seen);
    default: return false;
  }
}

Layer& command_target(const Layer& layer, float column, Run& run) {
  if (run.grid == nullptr) {
    throw UsageError(describe(layer) + ": a command for another layer needs a network around this one");
  }
  return run.grid->layer({0, 0, int_of(column), 0});
}

int int_of(float value) noexcept {
  constexpr float kLimit = 2147483648.0f;  // 2^31, the first float that no int holds
  if (std::isnan(value)) return 0;
  if (value >= kLimit) return std::numeric_limits<int>::max();
  if (value < -kLimit) return std::numeric_limits<int>::min();
  return static_cast<int>(value);
}

// ---- commands: they turn a layer into one of another type while the network runs

namespace {

bool is_norm(LayerType type) { return type == LayerType::rms_norm || type == LayerType::layer_norm; }

std::size_t size_of(int setting) { return setting > 0 ? static_cast<std::size_t>(setting) : 0; }
int or_else(int setting, int fallback) { return setting > 0 ? setting : fallback; }

/// Values per row that go in and out of a layer; 0: not known.
struct Widths {
  std::size_t input = 0, output = 0;
};

/// A convolution works on whole samples. If no result was seen, it is taken to be as large as the input.
Widths convolution_widths(const LayerConfig& config, int axes, const Measured& measured) {
  constexpr std::string_view kWhat = "inputs of a convolution";
  const std::size_t across = size_of(or_else(config.input_width, config.input_height));
  const bool along_width = config.type == LayerType::conv_transposed_1d;
  std::size_t inputs =
      checked_mul(size_of(config.input_channels), along_width ? across : size_of(config.input_height), kWhat);
  if (axes >= 2) inputs = checked_mul(inputs, across, kWhat);
  if (axes >= 3) inputs = checked_mul(inputs, size_of(or_else(config.input_depth, config.input_height)), kWhat);
  if (measured.input == nullptr || inputs == 0) return {inputs, inputs};
  return {inputs, measured.output->elements() / std::max<std::size_t>(1, measured.input->elements() / inputs)};
}

Widths widths_in_settings(const LayerConfig& config, const Measured& measured) {
  const std::size_t height = size_of(config.input_height);
  switch (config.type) {
    case LayerType::multi_head_attention: return {size_of(config.d_model), size_of(config.d_model)};
    case LayerType::swiglu: return {height, height};
    case LayerType::rms_norm:
    case LayerType::layer_norm: {
      const std::size_t width = size_of(or_else(config.output_height, config.input_height));
      return {width, width};
    }
    case LayerType::cnn1:
    case LayerType::conv_transposed_1d: return convolution_widths(config, 1, measured);
    case LayerType::cnn2:
    case LayerType::conv_transposed_2d: return convolution_widths(config, 2, measured);
    case LayerType::cnn3:
    case LayerType::conv_transposed_3d: return convolution_widths(config, 3, measured);
    case LayerType::embedding: return {1, size_of(config.embedding_dim)};
    case LayerType::kmeans: return {height, config.output_mode == "features" ? height : size_of(config.num_clusters)};
    case LayerType::dense:
    case LayerType::rnn:
    case LayerType::lstm: return {height, size_of(config.output_height)};
    case LayerType::softmax:
    case LayerType::residual:
    case LayerType::parallel:
    case LayerType::sequential:
    case LayerType::metacognition: break;
  }
  return {};
}

Widths widths_of(const LayerConfig& config, const Measured& measured) {
  Widths widths = widths_in_settings(config, measured);
  if (widths.input == 0 && measured.input != nullptr) widths.input = measured.input->last();
  if (widths.output == 0 && measured.output != nullptr) widths.output = measured.output->last();
  if (widths.output == 0) widths.output = widths.input;
  return widths;
}

/// Settings of a layer of `type` with these widths. Settings of the old type are dropped; those of the layer as a whole
/// (dtype, place in the network) stay.
LayerConfig settings_for(LayerType type, const LayerConfig& old, const Widths& widths, int clusters) {
  const int in = checked_cast<int>(widths.input, "input width");
  const int out = checked_cast<int>(widths.output, "output width");
  LayerConfig next;
  next.type = type;
  next.activation = type == LayerType::dense ? Activation::linear : old.activation;
  next.dtype = old.dtype;
  next.granularity = old.granularity;
  next.group = old.group;
  next.use_tiling = old.use_tiling;
  next.tile_size = old.tile_size;
  next.is_disabled = old.is_disabled;
  next.is_remote_link = old.is_remote_link;
  next.target = old.target;
  next.seq_length = old.seq_length;
  next.input_height = in;
  next.output_height = out;
  if (type == LayerType::cnn1) {
    next.input_channels = next.filters = next.stride = next.padding = 1;
    next.kernel_size = 3;
  } else if (type == LayerType::rms_norm) {
    next.output_height = in;
  } else if (type == LayerType::swiglu) {
    next.output_height = checked_cast<int>(checked_mul<std::size_t>(4, widths.input, "SwiGLU width"), "SwiGLU width");
  } else if (type == LayerType::multi_head_attention) {
    next.d_model = next.output_height = in;
    next.num_heads = old.num_heads > 0 && in % old.num_heads == 0 ? old.num_heads : 1;
    next.num_kv_heads = next.num_heads;
    next.head_dim = in / next.num_heads;
  } else if (type == LayerType::kmeans) {
    next.num_clusters = clusters;
  }
  return next;
}

bool change_type(Layer& layer, LayerType type, float param, const Measured& measured, Run& run) {
  const LayerType old = layer.config.type;
  if (old == type || old == LayerType::parallel || old == LayerType::sequential) return false;
  const Widths widths = widths_of(layer.config, measured);
  if (widths.input == 0) return false;
  const int clusters = or_else(int_of(param), or_else(layer.config.output_height, 2));
  LayerConfig next = settings_for(type, layer.config, widths, clusters);

  std::optional<WeightStore> weights;
  const LayerFunctions& functions = functions_of(type);
  if (functions.initialize != nullptr) {
    const WeightShape shape = functions.weight_shape(next);
    // Groups may not divide the new rows; one scale for all always fits.
    if (next.granularity == Granularity::group && shape.cols % size_of(next.group) != 0) {
      next.granularity = Granularity::tensor;
      next.group = 0;
    }
    next.dtype = fitting_type(next.dtype, shape).value_or(DType::float32);
    check_memory(checked_mul(shape.rows, shape.cols, "the weights of a layer"), describe(layer), "new weights");
    weights.emplace(shape);
    run.seed = derive_seed(run.seed, 0);
    functions.initialize(next, *weights, run.seed);
    if (layer.weights && (is_norm(old) || !is_norm(type))) {
      const std::span<float> master = weights->edit_master();
      const std::size_t kept = std::min(master.size(), layer.weights->count());
      std::ranges::copy(layer.weights->master().first(kept), master.begin());
    }
  }
  layer.config = std::move(next);
  layer.weights = std::move(weights);
  return true;
}

bool change_dtype(Layer& layer, int id) {
  if (id < 0 || static_cast<std::size_t>(id) >= kDTypes.size()) {
    throw UsageError(describe(layer) + ": command 99 names type " + std::to_string(id) + "; types are 0 to " +
                     std::to_string(kDTypes.size() - 1));
  }
  const DType dtype = static_cast<DType>(id);
  return std::exchange(layer.config.dtype, dtype) != Format(dtype);
}

/// Ones on the diagonal of a square Dense; for a single output, it becomes the first input.
bool make_identity(Layer& layer) {
  const std::size_t inputs = size_of(layer.config.input_height), outputs = size_of(layer.config.output_height);
  if (layer.config.type != LayerType::dense || !layer.weights || inputs == 0) return false;
  if ((inputs != outputs && outputs != 1) || layer.weights->count() != inputs * outputs) return false;
  std::vector<float> identity(inputs * outputs);
  for (std::size_t i = 0; i < outputs; ++i) identity[i * inputs + i] = 1;
  if (std::ranges::equal(identity, layer.weights->master())) return false;
  layer.weights->set_master(identity);
  return true;
}

}  // namespace

bool execute_command(Layer& target, int command, float param, const Measured& measured, Run& run) {
  if (target.config.type == LayerType::metacognition) {
    return target.observed != nullptr && execute_command(*target.observed, command, param, measured, run);
  }
  switch (command) {
    case 70: return change_type(target, LayerType::dense, param, measured, run);
    case 80: return change_type(target, LayerType::cnn1, param, measured, run);
    case 81: return change_type(target, LayerType::rnn, param, measured, run);
    case 83: return change_type(target, LayerType::softmax, param, measured, run);
    case 90: return change_type(target, LayerType::rms_norm, param, measured, run);
    case 91: return change_type(target, LayerType::swiglu, param, measured, run);
    case 92: return change_type(target, LayerType::multi_head_attention, param, measured, run);
    case 93: return change_type(target, LayerType::lstm, param, measured, run);
    case 98: return change_type(target, LayerType::kmeans, param, measured, run);
    case 99: return change_dtype(target, int_of(param));
    case 101: return make_identity(target);
    default: return false;
  }
}

}  // namespace imago::layers
