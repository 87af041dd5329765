// Layer types, activations and softmax types as checkpoints spell them. The first name of a value is the one that is
// written; the others are accepted.

#include <string_view>
#include <utility>

#include "base/names.h"
#include "imago/layer.h"

namespace imago {

namespace {

constexpr std::pair<LayerType, std::string_view> kLayerTypeNames[] = {
    {LayerType::dense, "Dense"},
    {LayerType::multi_head_attention, "MultiHeadAttention"},
    {LayerType::swiglu, "SwiGLU"},
    {LayerType::rms_norm, "RMSNorm"},
    {LayerType::cnn1, "CNN1"},
    {LayerType::cnn2, "CNN2"},
    {LayerType::cnn3, "CNN3"},
    {LayerType::rnn, "RNN"},
    {LayerType::lstm, "LSTM"},
    {LayerType::layer_norm, "LayerNorm"},
    {LayerType::conv_transposed_1d, "ConvTransposed1D"},
    {LayerType::conv_transposed_2d, "ConvTransposed2D"},
    {LayerType::conv_transposed_3d, "ConvTransposed3D"},
    {LayerType::embedding, "Embedding"},
    {LayerType::kmeans, "KMeans"},
    {LayerType::softmax, "Softmax"},
    {LayerType::parallel, "Parallel"},
    {LayerType::sequential, "Sequential"},
    {LayerType::residual, "Residual"},
    {LayerType::metacognition, "Metacognition"},
    {LayerType::multi_head_attention, "MHA"},
    {LayerType::multi_head_attention, "ATTENTION"},
    {LayerType::metacognition, "META"},
};

constexpr std::pair<Activation, std::string_view> kActivationNames[] = {
    {Activation::relu, "ReLU"},   {Activation::silu, "Silu"},       {Activation::gelu, "GELU"},
    {Activation::tanh, "Tanh"},   {Activation::sigmoid, "Sigmoid"}, {Activation::leaky_relu, "LeakyReLU"},
    {Activation::relu2, "ReLU2"}, {Activation::linear, "Linear"},   {Activation::leaky_relu, "LEAKY_RELU"},
    {Activation::relu2, "6"},
};

constexpr std::pair<SoftmaxType, std::string_view> kSoftmaxNames[] = {
    {SoftmaxType::standard, "Standard"},
    {SoftmaxType::grid, "Grid"},
    {SoftmaxType::hierarchical, "Hierarchical"},
    {SoftmaxType::temperature, "Temperature"},
    {SoftmaxType::gumbel, "Gumbel"},
    {SoftmaxType::masked, "Masked"},
    {SoftmaxType::sparse, "Sparse"},
    {SoftmaxType::adaptive, "Adaptive"},
    {SoftmaxType::mixture, "Mixture"},
    {SoftmaxType::entmax, "Entmax"},
};

}  // namespace

std::string_view name(LayerType type) noexcept { return name_in(kLayerTypeNames, type, "Dense"); }
std::string_view name(Activation activation) noexcept { return name_in(kActivationNames, activation, "Linear"); }
std::string_view name(SoftmaxType type) noexcept { return name_in(kSoftmaxNames, type, "Standard"); }

LayerType parse_layer_type(std::string_view text) {
  return parse_in(kLayerTypeNames, text, "layer type", same_but_for_case);
}

Activation parse_activation(std::string_view text) {
  return text.empty() ? Activation::linear : parse_in(kActivationNames, text, "activation", same_but_for_case);
}

SoftmaxType parse_softmax_type(std::string_view text) {
  return text.empty() ? SoftmaxType::standard : parse_in(kSoftmaxNames, text, "softmax type", same_but_for_case);
}

}  // namespace imago
