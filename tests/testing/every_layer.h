#pragma once

// One small layer of each of the 20 types, with an input that fits it.

#include <string>
#include <utility>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"
#include "testing/gradient_check.h"

namespace imago::testing {

struct LayerCase {
  Layer layer;
  Tensor<float> x;
};

inline LayerCase layer_case(LayerType type) {
  const ConvolutionShape image{.channels = 2, .filters = 3, .kernel = 3, .stride = 2, .padding = 1, .height = 5};
  const auto image_case = [&](int axes, bool transposed) {
    std::vector<std::size_t> extents{3, 2};
    extents.resize(2 + static_cast<std::size_t>(axes), 5);
    return LayerCase{
        transposed ? transposed_convolution(axes, image, Activation::tanh) : convolution(axes, image, Activation::silu),
        random_tensor(Shape(extents), 1)};
  };
  const Tensor<float> rows = random_tensor({3, 7}, 1);
  switch (type) {
    case LayerType::dense: return {dense(7, 5, Activation::gelu), rows};
    case LayerType::multi_head_attention:
      return {attention({.width = 12, .heads = 2, .kv_heads = 1}), random_tensor({2, 3, 12}, 1)};
    case LayerType::swiglu: return {swiglu(7, 9), rows};
    case LayerType::rms_norm: return {rms_norm(7), rows};
    case LayerType::cnn1: return image_case(1, false);
    case LayerType::cnn2: return image_case(2, false);
    case LayerType::cnn3: return image_case(3, false);
    case LayerType::rnn: return {rnn(7, 5, 3), random_tensor({2, 3, 7}, 1)};
    case LayerType::lstm: return {lstm(7, 5, 3), random_tensor({2, 3, 7}, 1)};
    case LayerType::layer_norm: return {layer_norm(7), rows};
    case LayerType::conv_transposed_1d: return image_case(1, true);
    case LayerType::conv_transposed_2d: return image_case(2, true);
    case LayerType::conv_transposed_3d: return image_case(3, true);
    case LayerType::embedding: return {embedding(11, 5), Tensor<float>({2, 3}, {0, 10, 3, 3, 7, 1})};
    case LayerType::kmeans: return {kmeans(7, 5, 0.5), rows};
    case LayerType::softmax: return {softmax(), rows};
    case LayerType::parallel:
      return {mixture(dense(7, 2), layer_list(dense(7, 5), dense(7, 5, Activation::tanh))), rows};
    case LayerType::sequential: return {sequential(layer_list(dense(7, 7), residual(), rms_norm(7))), rows};
    case LayerType::residual: return {residual(), rows};
    case LayerType::metacognition: return {metacognition(dense(7, 5), {{.condition = 1, .threshold = 1e9}}), rows};
  }
  throw std::logic_error("a layer type without a case");
}

}  // namespace imago::testing
