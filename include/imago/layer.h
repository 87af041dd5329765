#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imago/format.h"
#include "imago/weights.h"

namespace imago {

class Network;

/// What a layer computes. Checkpoints store the numbers 0 (dense) to 19 (metacognition).
enum class LayerType : std::uint8_t {
  dense,
  multi_head_attention,
  swiglu,
  rms_norm,
  cnn1,
  cnn2,
  cnn3,
  rnn,
  lstm,
  layer_norm,
  conv_transposed_1d,
  conv_transposed_2d,
  conv_transposed_3d,
  embedding,
  kmeans,
  softmax,
  parallel,
  sequential,
  residual,
  metacognition,
};
inline constexpr int kLayerTypes = 20;

/// The function f of a layer. With s(x) = 1 / (1 + exp(-x)): relu max(x, 0); silu x · s(x);
/// gelu x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))); leaky_relu x, or 0.01 x below 0; relu2 max(x, 0)². Unknown ids
/// act as linear.
enum class Activation : std::int8_t { linear = -1, relu, silu, gelu, tanh, sigmoid, leaky_relu, relu2 };

enum class SoftmaxType : std::uint8_t {
  standard,
  grid,
  hierarchical,
  temperature,
  gumbel,
  masked,
  sparse,
  adaptive,
  mixture,
  entmax,
};

/// As checkpoints spell them: "Dense", "ReLU", "Standard".
std::string_view name(LayerType type) noexcept;
std::string_view name(Activation activation) noexcept;
std::string_view name(SoftmaxType type) noexcept;
/// In any case, and also by their aliases: MHA, ATTENTION, META; LEAKY_RELU, 6 for relu2. Throw UsageError that lists
/// the known names. An empty name is linear for activations and standard for softmax.
LayerType parse_layer_type(std::string_view text);
Activation parse_activation(std::string_view text);
SoftmaxType parse_softmax_type(std::string_view text);

/// A place in the grid.
struct Coordinates {
  int z = 0, y = 0, x = 0, l = 0;
  friend bool operator==(const Coordinates&, const Coordinates&) = default;
};

/// The settings of a layer exactly as a file states them: 0 means "not set". Defaults are applied where a setting is
/// used and never written back, so that saving gives back what was read.
struct LayerConfig {
  LayerType type = LayerType::dense;
  Activation activation = Activation::relu;
  Format dtype = DType::float32;                  ///< of the weights; a block format too, for layers with matrices
  Granularity granularity = Granularity::tensor;  ///< of the scales of `dtype`
  int group = 0;                                  ///< weights per scale with Granularity::group

  int input_height = 0, input_width = 0, input_depth = 0;
  int output_height = 0, output_width = 0, output_depth = 0;
  int input_channels = 0, filters = 0, kernel_size = 0, stride = 0, padding = 0, output_padding = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0, query_dim = 0, d_model = 0, seq_length = 0;
  double rope_freq_base = 0;
  int vocab_size = 0, embedding_dim = 0;
  int num_clusters = 0;
  double kmeans_temperature = 0;
  std::string output_mode;
  SoftmaxType softmax_type = SoftmaxType::standard;
  double temperature = 0;
  int softmax_rows = 0, softmax_cols = 0;
  double entmax_alpha = 0;
  bool gumbel_noise = false;
  std::string combine_mode;
  bool use_tiling = false;  ///< a hint for the original engine; not used, but saved again
  int tile_size = 0;        ///< likewise
  bool is_disabled = false;

  double rms_norm_eps = 0;
  int max_seq_len = 0;   ///< positions that a decoder was made for; forward takes any number
  bool no_rope = false;  ///< of attention: queries and keys are not rotated
  bool no_bias = false;  ///< of attention and SwiGLU: the biases in the array are neither added nor trained
  std::vector<float> q_norm, k_norm, inner_norm;
  std::vector<bool> mask;
  std::vector<int> hierarchy_levels;
  bool is_remote_link = false;
  Coordinates target;  ///< of a remote link
  std::string meta_source, meta_effect;

  /// How the weights are packed.
  Scheme scheme() const;
};

/// One rule of a Metacognition layer: if the condition holds after a forward, the command changes the target layer, and
/// the observed layer runs again. Statistics are those of the observed layer's output unless said otherwise.
struct MetaRule {
  /// 1, 2: standard deviation > threshold, < threshold. 3, 4: |mean| > threshold, < threshold. 5: |maximum| >
  /// threshold. 6: the share of values with magnitude above 1e-6 is < threshold. 7: the standard deviation of the input
  /// is more than threshold times that of two forwards before. 8: | |mean of output| / |mean of input| - 1 | >
  /// threshold. Any other: never.
  int condition = 0;
  double threshold = 0;
  /// Turns the target into another layer of the same widths: 70 Dense (linear), 80 CNN1, 81 RNN, 83 Softmax, 90
  /// RMSNorm, 91 SwiGLU (four times as wide inside), 92 MultiHeadAttention, 93 LSTM, 98 KMeans with `param` clusters.
  /// Old weights are kept as a prefix of the new ones. 99: sets its dtype to the one numbered `param`. 101: makes a
  /// square Dense the identity. Any other: nothing.
  float command = 0;
  float param = 0;
  int cooldown = 0;        ///< forwards since the start or the last firing before the rule is tried
  bool self_only = false;  ///< the target is the observed layer; otherwise the grid layer at (0, 0, param, 0)
  friend bool operator==(const MetaRule&, const MetaRule&) = default;
};

/// A layer: its settings, its weights, the layers inside it. Move-only, as its weights are.
struct Layer {
  Layer();
  explicit Layer(LayerConfig settings);
  Layer(Layer&&) noexcept;
  Layer& operator=(Layer&&) noexcept;
  ~Layer();

  Coordinates at;
  LayerConfig config;
  std::optional<WeightStore> weights;  ///< none until initialised or loaded, and for layers that own none

  std::vector<Layer> branches;            ///< of Parallel
  std::unique_ptr<Layer> filter_gate;     ///< of Parallel with combine_mode "filter"
  std::vector<Layer> sub_layers;          ///< of Sequential
  std::unique_ptr<Layer> observed;        ///< of Metacognition
  std::vector<MetaRule> rules;            ///< of Metacognition
  std::shared_ptr<Network> meta_network;  ///< of Metacognition; never shared, but layers do not know networks
};

/// Weight gradients, one flat array per layer in the layout of its master, and those of the layers inside it: branches
/// and then the gate of Parallel, sub-layers of Sequential, the observed layer of Metacognition. Empty for layers
/// without weights and for remote links, whose gradients are those of their targets.
struct LayerGradient {
  std::vector<float> weights;
  std::vector<LayerGradient> children;
};

/// A layer's weight array: [O][I] for Dense, one row for arrays made of several parts; 0 × 0 for layers without
/// weights. Throws UsageError, naming the layer, for invalid settings.
WeightShape weight_shape(const LayerConfig& config);

/// Gives the layer and all inside it fresh weights: matrices uniform in [-0.1, 0.1], biases and beta 0, gamma 1. The
/// same seed gives the same weights on every machine.
void initialize_weights(Layer& layer, std::uint64_t seed);

// Layers by name, for building networks in code; the network makes their weights. Sizes that have a default may be 0.

Layer dense(int inputs, int outputs, Activation activation = Activation::linear);
Layer embedding(int vocabulary, int width);
Layer rms_norm(int width, double eps = 0);
Layer layer_norm(int width);
struct AttentionShape {
  int width = 0, heads = 0, kv_heads = 0, head_dim = 0, seq_length = 0;
  double rope_base = 0;
};
Layer attention(const AttentionShape& shape);
Layer swiglu(int width, int intermediate);
struct ConvolutionShape {
  int channels = 0, filters = 0, kernel = 0, stride = 1, padding = 0, output_padding = 0;
  int height = 0, width = 0, depth = 0;  ///< of the input; axes left out equal the height
};
/// `axes` 1, 2 or 3. Throws UsageError otherwise.
Layer convolution(int axes, const ConvolutionShape& shape, Activation activation = Activation::linear);
Layer transposed_convolution(int axes, const ConvolutionShape& shape, Activation activation = Activation::linear);
Layer rnn(int inputs, int outputs, int steps);
Layer lstm(int inputs, int outputs, int steps);
Layer kmeans(int inputs, int clusters, double temperature = 0, std::string output_mode = {});
Layer softmax(SoftmaxType type = SoftmaxType::standard);
Layer residual();
Layer sequential(std::vector<Layer> layers);
Layer parallel(std::string combine_mode, std::vector<Layer> branches);
/// Parallel with the mode "filter": a soft mixture of the branches, weighted by `gate`.
Layer mixture(Layer gate, std::vector<Layer> branches);
/// The default rules of a Metacognition layer: a layer whose gain drifts becomes the identity, one with extreme outputs
/// an RMSNorm, one with mostly zero outputs a Dense.
std::vector<MetaRule> default_meta_rules();
Layer metacognition(Layer observed, std::vector<MetaRule> rules = default_meta_rules());
/// A branch or sub-layer that is another layer of the grid.
Layer remote_link(const Coordinates& target);
/// The same layer in another type.
Layer with_dtype(Layer layer, Format dtype);

/// {dense(…), residual(), …} as a list; a braced list cannot hold layers, which only move.
template <class... Layers>
std::vector<Layer> layer_list(Layers... layers) {
  std::vector<Layer> list;
  list.reserve(sizeof...(layers));
  (list.push_back(std::move(layers)), ...);
  return list;
}

}  // namespace imago
