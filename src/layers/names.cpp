#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "imago/error.h"
#include "imago/layer.h"

namespace imago {

namespace {

/// A name and what it stands for. The first row of a value is how it is written.
template <class T>
struct Name {
  std::string_view text;
  T value;
};

constexpr Name<LayerType> kLayerTypeNames[] = {
    {"Dense", LayerType::dense},
    {"MultiHeadAttention", LayerType::multi_head_attention},
    {"SwiGLU", LayerType::swiglu},
    {"RMSNorm", LayerType::rms_norm},
    {"CNN1", LayerType::cnn1},
    {"CNN2", LayerType::cnn2},
    {"CNN3", LayerType::cnn3},
    {"RNN", LayerType::rnn},
    {"LSTM", LayerType::lstm},
    {"LayerNorm", LayerType::layer_norm},
    {"ConvTransposed1D", LayerType::conv_transposed_1d},
    {"ConvTransposed2D", LayerType::conv_transposed_2d},
    {"ConvTransposed3D", LayerType::conv_transposed_3d},
    {"Embedding", LayerType::embedding},
    {"KMeans", LayerType::kmeans},
    {"Softmax", LayerType::softmax},
    {"Parallel", LayerType::parallel},
    {"Sequential", LayerType::sequential},
    {"Residual", LayerType::residual},
    {"Metacognition", LayerType::metacognition},
    {"MHA", LayerType::multi_head_attention},
    {"ATTENTION", LayerType::multi_head_attention},
    {"META", LayerType::metacognition},
};

constexpr Name<Activation> kActivationNames[] = {
    {"ReLU", Activation::relu},   {"Silu", Activation::silu},       {"GELU", Activation::gelu},
    {"Tanh", Activation::tanh},   {"Sigmoid", Activation::sigmoid}, {"LeakyReLU", Activation::leaky_relu},
    {"ReLU2", Activation::relu2}, {"Linear", Activation::linear},   {"LEAKY_RELU", Activation::leaky_relu},
    {"6", Activation::relu2},
};

constexpr Name<SoftmaxType> kSoftmaxNames[] = {
    {"Standard", SoftmaxType::standard},
    {"Grid", SoftmaxType::grid},
    {"Hierarchical", SoftmaxType::hierarchical},
    {"Temperature", SoftmaxType::temperature},
    {"Gumbel", SoftmaxType::gumbel},
    {"Masked", SoftmaxType::masked},
    {"Sparse", SoftmaxType::sparse},
    {"Adaptive", SoftmaxType::adaptive},
    {"Mixture", SoftmaxType::mixture},
    {"Entmax", SoftmaxType::entmax},
};

constexpr char lower(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool same_text(std::string_view a, std::string_view b) noexcept { return std::ranges::equal(a, b, {}, lower, lower); }

/// A value outside the enumeration has the name of `fallback`.
template <class T, std::size_t n>
std::string_view find_name(const Name<T> (&names)[n], T value, T fallback) noexcept {
  const auto row = std::ranges::find(names, value, &Name<T>::value);
  return row != std::end(names) ? row->text : std::ranges::find(names, fallback, &Name<T>::value)->text;
}

template <class T, std::size_t n>
T parse(const Name<T> (&names)[n], std::string_view text, std::string_view what) {
  for (const Name<T>& row : names) {
    if (same_text(row.text, text)) return row.value;
  }
  std::string known;
  for (const Name<T>& row : names) known.append(known.empty() ? "" : ", ").append(row.text);
  throw UsageError(fmt::format("unknown {} '{}'; known are {}", what, text, known));
}

}  // namespace

std::string_view name(LayerType type) noexcept { return find_name(kLayerTypeNames, type, LayerType::dense); }
std::string_view name(Activation activation) noexcept {
  return find_name(kActivationNames, activation, Activation::linear);
}
std::string_view name(SoftmaxType type) noexcept { return find_name(kSoftmaxNames, type, SoftmaxType::standard); }

LayerType parse_layer_type(std::string_view text) { return parse(kLayerTypeNames, text, "layer type"); }

Activation parse_activation(std::string_view text) {
  return text.empty() ? Activation::linear : parse(kActivationNames, text, "activation");
}

SoftmaxType parse_softmax_type(std::string_view text) {
  return text.empty() ? SoftmaxType::standard : parse(kSoftmaxNames, text, "softmax type");
}

}  // namespace imago
