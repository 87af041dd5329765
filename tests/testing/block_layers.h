#pragma once

// Layers whose weights may be in any block format, with an input for each.

#include <string>
#include <utility>
#include <vector>

#include "imago/layer.h"
#include "imago/numeric.h"
#include "testing/gradient_check.h"

namespace imago::testing {

struct BlockLayer {
  std::string name;
  Layer layer;
  Tensor<float> x;
};

/// All layers with matrices, with rows that fit every block.
inline std::vector<BlockLayer> block_layers() {
  std::vector<BlockLayer> all;
  const auto add = [&](std::string name, Layer layer, Tensor<float> x) {
    all.push_back({std::move(name), std::move(layer), std::move(x)});
  };
  Tensor<float> ids(Shape{4});
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<float>(3 * i);
  const ConvolutionShape image{.channels = 32, .filters = 4, .kernel = 8, .height = 16};
  add("dense", dense(256, 24, Activation::tanh), random_tensor({3, 256}, 1));
  add("attention", attention({.width = 256, .heads = 4, .kv_heads = 1, .seq_length = 3}),
      random_tensor({2, 3, 256}, 2));
  add("swiglu", swiglu(256, 512), random_tensor({3, 256}, 3));
  add("rnn", rnn(256, 256, 2), random_tensor({2, 2, 256}, 4));
  add("lstm", lstm(256, 256, 2), random_tensor({2, 2, 256}, 5));
  add("embedding", embedding(10, 256), std::move(ids));
  add("kmeans", kmeans(256, 5), random_tensor({3, 256}, 6));
  add("convolution", convolution(1, image), random_tensor({2, 32, 16}, 7));
  add("transposed", transposed_convolution(1, image), random_tensor({2, 32, 16}, 8));
  return all;
}

}  // namespace imago::testing
