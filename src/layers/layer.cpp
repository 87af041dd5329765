#include "imago/layer.h"

#include <fmt/format.h>

#include <utility>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/layer_functions.h"
#include "weights/random.h"

namespace imago {

Scheme LayerConfig::scheme() const {
  Scheme result(dtype);
  if (!dtype.has_scales()) return result;  // the settings stay, for when the layer gets a scaled type again
  result.granularity = granularity;
  result.group = group;
  return result;
}

Layer::Layer() = default;
Layer::Layer(LayerConfig settings) : config(std::move(settings)) {}
Layer::Layer(Layer&&) noexcept = default;
Layer& Layer::operator=(Layer&&) noexcept = default;
Layer::~Layer() = default;

WeightShape weight_shape(const LayerConfig& config) { return layers::functions_of(config.type).weight_shape(config); }

namespace {

/// Calls body(child, index) for the layers inside `layer`, but not for links, which name a layer elsewhere.
template <class Body>
void for_each_own_child(Layer& layer, Body&& body) {
  std::uint64_t index = 0;
  layers::for_each_child(layer, [&](Layer& child) {
    if (!child.config.is_remote_link) body(child, index);
    ++index;
  });
}

Layer layer_of(LayerType type, Activation activation = Activation::linear) {
  LayerConfig config;
  config.type = type;
  config.activation = activation;
  return Layer(std::move(config));
}

Layer sized(LayerType type, int inputs, int outputs, Activation activation = Activation::linear) {
  Layer layer = layer_of(type, activation);
  layer.config.input_height = inputs;
  layer.config.output_height = outputs;
  return layer;
}

Layer recurrent(LayerType type, int inputs, int outputs, int steps) {
  Layer layer = sized(type, inputs, outputs);
  layer.config.seq_length = steps;
  return layer;
}

/// `first` is the type for one axis; those for two and three follow it.
Layer convolution_of(LayerType first, int axes, const ConvolutionShape& shape, Activation activation) {
  if (axes < 1 || axes > 3) throw UsageError(fmt::format("convolutions have 1, 2 or 3 axes, not {}", axes));
  Layer layer = layer_of(static_cast<LayerType>(static_cast<int>(first) + axes - 1), activation);
  LayerConfig& config = layer.config;
  config.input_channels = shape.channels;
  config.filters = shape.filters;
  config.kernel_size = shape.kernel;
  config.stride = shape.stride;
  config.padding = shape.padding;
  config.output_padding = shape.output_padding;
  config.input_height = shape.height;
  config.input_width = shape.width;
  config.input_depth = shape.depth;
  return layer;
}

}  // namespace

void initialize_weights(Layer& layer, std::uint64_t seed) {
  const layers::LayerFunctions& functions = layers::functions_of(layer.config.type);
  layer.weights.reset();
  if (functions.initialize != nullptr) {
    const WeightShape shape = functions.weight_shape(layer.config);
    layers::check_memory(checked_mul(shape.rows, shape.cols, "the weights of a layer"), layers::describe(layer),
                         "weights");
    functions.initialize(layer.config, layer.weights.emplace(shape), seed);
  }
  for_each_own_child(layer,
                     [&](Layer& child, std::uint64_t index) { initialize_weights(child, derive_seed(seed, index)); });
}

Layer dense(int inputs, int outputs, Activation activation) {
  return sized(LayerType::dense, inputs, outputs, activation);
}

Layer embedding(int vocabulary, int width) {
  Layer layer = layer_of(LayerType::embedding);
  layer.config.vocab_size = vocabulary;
  layer.config.embedding_dim = width;
  return layer;
}

Layer rms_norm(int width, double eps) {
  Layer layer = sized(LayerType::rms_norm, width, width);
  layer.config.rms_norm_eps = eps;
  return layer;
}

Layer layer_norm(int width) { return sized(LayerType::layer_norm, width, width); }

Layer attention(const AttentionShape& shape) {
  Layer layer = layer_of(LayerType::multi_head_attention);
  layer.config.d_model = shape.width;
  layer.config.num_heads = shape.heads;
  layer.config.num_kv_heads = shape.kv_heads;
  layer.config.head_dim = shape.head_dim;
  layer.config.seq_length = shape.seq_length;
  layer.config.rope_freq_base = shape.rope_base;
  return layer;
}

Layer swiglu(int width, int intermediate) { return sized(LayerType::swiglu, width, intermediate); }

Layer convolution(int axes, const ConvolutionShape& shape, Activation activation) {
  return convolution_of(LayerType::cnn1, axes, shape, activation);
}

Layer transposed_convolution(int axes, const ConvolutionShape& shape, Activation activation) {
  return convolution_of(LayerType::conv_transposed_1d, axes, shape, activation);
}

Layer rnn(int inputs, int outputs, int steps) { return recurrent(LayerType::rnn, inputs, outputs, steps); }
Layer lstm(int inputs, int outputs, int steps) { return recurrent(LayerType::lstm, inputs, outputs, steps); }

Layer kmeans(int inputs, int clusters, double temperature, std::string output_mode) {
  Layer layer = layer_of(LayerType::kmeans);
  layer.config.input_height = inputs;
  layer.config.num_clusters = clusters;
  layer.config.kmeans_temperature = temperature;
  layer.config.output_mode = std::move(output_mode);
  return layer;
}

Layer softmax(SoftmaxType type) {
  Layer layer = layer_of(LayerType::softmax);
  layer.config.softmax_type = type;
  return layer;
}

Layer residual() { return layer_of(LayerType::residual); }

Layer sequential(std::vector<Layer> layers) {
  Layer layer = layer_of(LayerType::sequential);
  layer.sub_layers = std::move(layers);
  return layer;
}

Layer parallel(std::string combine_mode, std::vector<Layer> branches) {
  Layer layer = layer_of(LayerType::parallel);
  layer.config.combine_mode = std::move(combine_mode);
  layer.branches = std::move(branches);
  return layer;
}

Layer mixture(Layer gate, std::vector<Layer> branches) {
  Layer layer = parallel("filter", std::move(branches));
  layer.filter_gate = std::make_unique<Layer>(std::move(gate));
  return layer;
}

std::vector<MetaRule> default_meta_rules() {
  return {{.condition = 8, .threshold = 0.05, .command = 101, .self_only = true},
          {.condition = 1, .threshold = 10, .command = 90, .cooldown = 5, .self_only = true},
          {.condition = 6, .threshold = 0.05, .command = 70, .cooldown = 10, .self_only = true}};
}

Layer metacognition(Layer observed, std::vector<MetaRule> rules) {
  Layer layer = layer_of(LayerType::metacognition);
  layer.observed = std::make_unique<Layer>(std::move(observed));
  layer.rules = std::move(rules);
  return layer;
}

Layer remote_link(const Coordinates& target) {
  Layer layer = layer_of(LayerType::dense);
  layer.config.is_remote_link = true;
  layer.config.target = target;
  return layer;
}

Layer with_dtype(Layer layer, Format dtype) {
  const auto set = [&](Layer& one, auto&& self) -> void {
    one.config.dtype = dtype;
    for_each_own_child(one, [&](Layer& child, std::uint64_t) { self(child, self); });
  };
  set(layer, set);
  return layer;
}

}  // namespace imago
