#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "imago/error.h"
#include "layers/layer_functions.h"
#include "layers/settings.h"
#include "testing/every_layer.h"
#include "testing/gradient_check.h"
#include "weights/view_cache.h"

namespace imago {
namespace {

std::vector<float> master_of(const Layer& layer) {
  const std::span<const float> weights = layer.weights->master();
  return {weights.begin(), weights.end()};
}

/// What containers are to their children, with the functions of a type that has no weights.
Layer holding(std::vector<Layer> layers) {
  Layer layer = residual();
  layer.sub_layers = std::move(layers);
  return layer;
}

TEST(LayerFunctions, EveryTypeHasItsRow) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const auto type = static_cast<LayerType>(id);
    const layers::LayerFunctions& row = layers::functions_of(type);
    EXPECT_EQ(row.type, type) << id;
    EXPECT_TRUE(row.weight_shape != nullptr && row.forward != nullptr && row.backward != nullptr) << name(type);
    const bool owns_weights = id < static_cast<int>(LayerType::softmax);
    EXPECT_EQ(row.initialize != nullptr, owns_weights) << name(type);
  }
}

// A forward reads these and nothing else, so nothing else is copied to an accelerator.
TEST(LayerViews, AreWhatTheForwardReads) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const auto type = static_cast<LayerType>(id);
    auto [layer, x] = testing::layer_case(type);
    if (weight_shape(layer.config).count() == 0 || type == LayerType::embedding) continue;  // decodes row by row
    SCOPED_TRACE(name(type));
    testing::randomize_layer(layer, 3);
    layer.config.dtype = DType::int8;
    layers::LayerState state;
    layers::Run run;
    layers::forward_layer(layer, x, nullptr, state, run);
    std::vector<std::string> wanted, read;
    const auto text = [](std::size_t first, std::size_t rows, std::size_t cols) {
      return std::to_string(first) + ": " + std::to_string(rows) + " x " + std::to_string(cols);
    };
    view_cache(*layer.weights).host_matrices.for_each([&](const ViewCache::Key& key, const auto&) {
      read.push_back("matrix " + text(key.first, key.rows, key.cols));
    });
    view_cache(*layer.weights).decoded.for_each([&](const ViewCache::Key& key, const auto&) {
      read.push_back("decoded " + text(key.first, key.rows, key.cols));
    });
    const LayerViews views = layer_views(layer.weights->shape());
    for (const MatrixSlice& slice : views.matrices)
      wanted.push_back("matrix " + text(slice.first, slice.rows, slice.cols));
    for (const auto& [first, count] : views.decoded) wanted.push_back("decoded " + text(first, 1, count));
    std::ranges::sort(read);
    std::ranges::sort(wanted);
    EXPECT_EQ(read, wanted);
  }
}

TEST(LayerConfig, SchemeIsTypeAndScales) {
  LayerConfig config;
  EXPECT_EQ(config.scheme(), Scheme(DType::float32));
  config.dtype = DType::int4;
  config.granularity = Granularity::group;
  config.group = 64;
  EXPECT_EQ(config.scheme().format, Format(DType::int4));
  EXPECT_EQ(config.scheme().granularity, Granularity::group);
  EXPECT_EQ(config.scheme().group, 64);
  config.dtype = DType::float16;
  EXPECT_EQ(config.scheme(), Scheme(DType::float16)) << "a type without scales";
}

TEST(InitializeWeights, DependOnTheSeedAlone) {
  Layer a = dense(7, 5);
  Layer b = dense(7, 5);
  initialize_weights(a, 1);
  initialize_weights(b, 1);
  EXPECT_EQ(master_of(a), master_of(b));
  EXPECT_EQ(a.weights->rows(), 5u);
  EXPECT_EQ(a.weights->cols(), 7u);
  initialize_weights(b, 2);
  EXPECT_NE(master_of(a), master_of(b));
  for (const float w : master_of(a)) EXPECT_LE(std::abs(w), 0.1f);
  EXPECT_GT(std::ranges::max(master_of(a)), 0.05f) << "35 draws from [-0.1, 0.1]";
}

TEST(InitializeWeights, ReachesAllLayersInsideEachWithItsOwn) {
  Layer layer = holding(layer_list(dense(4, 4), dense(4, 4), holding(layer_list(dense(4, 4)))));
  layer.branches = layer_list(dense(4, 4), remote_link({}));
  layer.filter_gate = std::make_unique<Layer>(dense(4, 4));
  layer.observed = std::make_unique<Layer>(dense(4, 4));
  initialize_weights(layer, 9);
  EXPECT_FALSE(layer.weights);
  EXPECT_FALSE(layer.branches[1].weights) << "a link has the weights of its target";
  std::vector<std::vector<float>> all;
  for (const Layer* inner : {&layer.sub_layers[0], &layer.sub_layers[1], &layer.sub_layers[2].sub_layers[0],
                             &layer.branches[0], layer.filter_gate.get(), layer.observed.get()}) {
    ASSERT_TRUE(inner->weights);
    all.push_back(master_of(*inner));
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]) << i << " and " << j;
  }
}

TEST(InitializeWeights, PartsOfAnArrayDiffer) {
  WeightStore weights(16);
  layers::initialize_uniform(weights, 1, 0, 8);
  layers::initialize_uniform(weights, 1, 8, 4);
  layers::initialize_constant(weights, 12, 2, 1);
  const std::span<const float> master = weights.master();
  EXPECT_FALSE(std::ranges::equal(master.subspan(0, 4), master.subspan(8, 4)));
  EXPECT_EQ(std::vector<float>(master.begin() + 12, master.end()), (std::vector<float>{1, 1, 0, 0}));
}

TEST(Builders, SetWhatTheLayersRead) {
  EXPECT_EQ(dense(3, 4).config.activation, Activation::linear);
  EXPECT_EQ(dense(3, 4, Activation::gelu).config.output_height, 4);
  EXPECT_EQ(embedding(9, 2).config.vocab_size, 9);
  EXPECT_EQ(rms_norm(5, 1e-3).config.rms_norm_eps, 1e-3);
  EXPECT_EQ(attention({.width = 8, .heads = 2, .kv_heads = 1}).config.num_kv_heads, 1);
  EXPECT_EQ(swiglu(4, 9).config.output_height, 9);
  EXPECT_EQ(convolution(2, {.channels = 3}).config.type, LayerType::cnn2);
  EXPECT_EQ(transposed_convolution(3, {}).config.type, LayerType::conv_transposed_3d);
  EXPECT_THROW(convolution(4, {}), UsageError);
  EXPECT_THROW(transposed_convolution(0, {}), UsageError);
  EXPECT_EQ(rnn(1, 2, 3).config.seq_length, 3);
  EXPECT_EQ(lstm(1, 2, 3).config.type, LayerType::lstm);
  EXPECT_EQ(kmeans(4, 2, 0.5, "features").config.output_mode, "features");
  EXPECT_EQ(softmax(SoftmaxType::sparse).config.softmax_type, SoftmaxType::sparse);
  EXPECT_EQ(sequential(layer_list(residual(), residual())).sub_layers.size(), 2u);
  EXPECT_EQ(parallel("add", layer_list(residual())).config.combine_mode, "add");
  EXPECT_EQ(mixture(dense(1, 2), layer_list(residual(), residual())).filter_gate->config.output_height, 2);
  EXPECT_EQ(metacognition(residual(), {{.condition = 8}}).rules[0].condition, 8);
  EXPECT_EQ(remote_link({.l = 3}).config.target.l, 3);
}

TEST(Builders, WithDtypeReachesInside) {
  const Layer layer =
      with_dtype(sequential(layer_list(dense(2, 2), parallel("add", layer_list(dense(2, 2))))), DType::int4);
  EXPECT_EQ(layer.config.dtype, DType::int4);
  EXPECT_EQ(layer.sub_layers[0].config.dtype, DType::int4);
  EXPECT_EQ(layer.sub_layers[1].branches[0].config.dtype, DType::int4);
}

TEST(WeightShape, OfSettingsThatMakeNoLayerIsAUsageError) {
  for (const Layer& layer : layer_list(dense(0, 3), dense(3, 0), dense(-1, 3), embedding(0, 2), embedding(2, 0),
                                       rms_norm(0), layer_norm(-4))) {
    try {
      weight_shape(layer.config);
      ADD_FAILURE() << name(layer.config.type);
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(name(layer.config.type)), std::string::npos) << error.what();
    }
  }
}

}  // namespace

namespace layers {
namespace {

using testing::random_tensor;

TEST(ForwardLayer, WithoutWeightsNamesTheLayer) {
  Layer layer = dense(3, 2);
  layer.at = {0, 1, 2, 3};
  LayerState state;
  layers::Run run;
  try {
    forward_layer(layer, Tensor<float>(Shape{1, 3}), nullptr, state, run);
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("layer (0,1,2,3), Dense"), std::string::npos) << error.what();
  }
  layer.weights.emplace(5);
  try {
    forward_layer(layer, Tensor<float>(Shape{1, 3}), nullptr, state, run);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("layer (0,1,2,3), Dense"), std::string::npos) << error.what();
  }
}

TEST(ForwardLayer, ADisabledOnePassesOn) {
  Layer layer = dense(3, 2);
  layer.config.is_disabled = true;
  const Tensor<float> x = random_tensor({2, 5}, 1);
  const Tensor<float> grad = random_tensor({2, 5}, 2);
  LayerState state;
  layers::Run run;
  forward_layer(layer, x, nullptr, state, run);
  EXPECT_EQ(state.post.shape(), x.shape());
  EXPECT_TRUE(std::ranges::equal(state.post.values(), x.values()));
  LayerGradient gradient = zero_gradient(layer);
  backward_layer(layer, x, nullptr, grad, state, gradient, run);
  EXPECT_TRUE(std::ranges::equal(state.grad_input.values(), grad.values()));
}

TEST(BackwardLayer, AGradientOfAnotherSizeIsAShapeError) {
  Layer layer = dense(3, 2);
  initialize_weights(layer, 1);
  const Tensor<float> x(Shape{4, 3});
  LayerState state;
  layers::Run run{.for_backward = true};
  forward_layer(layer, x, nullptr, state, run);
  LayerGradient gradient = zero_gradient(layer);
  EXPECT_THROW(backward_layer(layer, x, nullptr, Tensor<float>(Shape{4, 3}), state, gradient, run), ShapeError);
}

TEST(ZeroGradient, IsATreeInTheOrderOfTheChildren) {
  Layer layer = residual();
  layer.branches = layer_list(dense(2, 3), remote_link({}));
  layer.filter_gate = std::make_unique<Layer>(dense(1, 2));
  initialize_weights(layer, 1);
  const LayerGradient gradient = zero_gradient(layer);
  EXPECT_TRUE(gradient.weights.empty());
  ASSERT_EQ(gradient.children.size(), 3u);
  EXPECT_EQ(gradient.children[0].weights, std::vector<float>(6));
  EXPECT_TRUE(gradient.children[1].weights.empty());
  EXPECT_EQ(gradient.children[2].weights, std::vector<float>(2));
}

}  // namespace
}  // namespace layers
}  // namespace imago
