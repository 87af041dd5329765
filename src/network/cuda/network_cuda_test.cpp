// Networks on a GPU against the host: every layer type, and what a network does around them.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/network.h"
#include "testing/block_layers.h"
#include "testing/every_layer.h"
#include "testing/gpu.h"

namespace imago {
namespace {

using testing::layer_case;
using testing::random_tensor;
using testing::randomize_layer;

class NetworkCudaTest : public testing::GpuTest {
 protected:
  /// |got - wanted| ≤ tolerance · the largest wanted value.
  static void expect_close(const Tensor<float>& got, const Tensor<float>& wanted, double tolerance,
                           const std::string& what) {
    ASSERT_EQ(got.shape().to_string(), wanted.shape().to_string()) << what;
    double largest = 1e-3, worst = 0;
    std::size_t wrong = 0, at = 0;
    for (const float value : wanted.values()) {
      if (std::isfinite(value)) largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (std::isnan(wanted[i]) && std::isnan(got[i])) continue;
      const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
      if (!(error <= tolerance * largest)) ++wrong;
      if (!(error <= worst)) {
        worst = error;
        at = i;
      }
    }
    EXPECT_EQ(wrong, 0u) << what << ": " << wrong << " of " << wanted.size() << " wrong; entry " << at << " is "
                         << got[at] << ", not " << wanted[at];
  }

  /// The network of one layer on both, with all weights random.
  void check_layer(const std::function<Layer()>& make, const Tensor<float>& x, const std::string& what,
                   double tolerance = 2e-5) {
    Network network(layers_of(make()));
    randomize_layer(network.layers()[0], 5);
    check_network(network, x, what, tolerance);
  }

  void check_network(Network& network, const Tensor<float>& x, const std::string& what, double tolerance = 2e-5) {
    const Tensor<float> wanted = network.forward(x);
    try {
      network.run_on(device());
      for (const char* round : {"first", "second"}) {
        expect_close(network.forward(x), wanted, tolerance, what + ", " + round + " forward");
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << what << ": " << error.what();
    }
    network.run_on(nullptr);
  }

  static std::vector<Layer> layers_of(Layer layer) { return layer_list(std::move(layer)); }
};

TEST_F(NetworkCudaTest, EveryLayerTypeEqualsTheHost) {
  for (int type = 0; type < kLayerTypes; ++type) {
    const LayerType layer_type = static_cast<LayerType>(type);
    check_layer([&] { return layer_case(layer_type).layer; }, layer_case(layer_type).x, std::string(name(layer_type)));
  }
}

TEST_F(NetworkCudaTest, SyncUploadsWhatForwardReads) {
  for (int id = 0; id < kLayerTypes; ++id) {
    auto [layer, x] = layer_case(static_cast<LayerType>(id));
    if (weight_shape(layer.config).count() == 0) continue;
    Network network(layers_of(with_dtype(std::move(layer), DType::int8)));
    const WeightStore& store = *network.layers()[0].weights;
    store.sync_to(device(), network.layers()[0].config.scheme());
    const std::size_t synced = store.device_bytes(*device());
    network.run_on(device());
    network.forward(x);
    EXPECT_EQ(store.device_bytes(*device()), synced) << name(static_cast<LayerType>(id)) << " read something else";
  }
}

TEST_F(NetworkCudaTest, EveryLayerTypeInPackedTypes) {
  for (const DType dtype : {DType::float64, DType::float16, DType::bfloat16, DType::fp8e4m3, DType::int8, DType::uint8,
                            DType::int4, DType::fp4, DType::int2, DType::ternary, DType::binary}) {
    for (int type = 0; type < kLayerTypes; ++type) {
      const LayerType layer_type = static_cast<LayerType>(type);
      if (layer_type == LayerType::metacognition) continue;
      check_layer([&] { return with_dtype(layer_case(layer_type).layer, dtype); }, layer_case(layer_type).x,
                  std::string(name(layer_type)) + " in " + std::string(name(dtype)));
    }
  }
}

TEST_F(NetworkCudaTest, LayersInBlockFormats) {
  for (const BlockFormatInfo& block : kBlockFormats) {
    for (testing::BlockLayer& one : testing::block_layers()) {
      check_layer([&] { return with_dtype(std::move(one.layer), block.id); }, one.x,
                  one.name + " in " + std::string(block.name));
    }
  }
}

TEST_F(NetworkCudaTest, FastProductsRoundActivations) {
  Network network(layer_list(with_dtype(dense(256, 64), BlockFormat::q4_0)), 3);
  const Tensor<float> x = random_tensor({1, 256}, 3), wanted = network.forward(x);
  network.run_on(device());
  network.set_fast(true);
  expect_close(network.forward(x), wanted, 2e-2, "fast");
}

TEST_F(NetworkCudaTest, DenseOfManySizes) {
  for (const DType dtype : {DType::float32, DType::int8, DType::int4}) {
    for (const std::size_t batch : {1u, 3u, 8u, 9u, 33u, 130u}) {
      for (const auto& [inputs, outputs] : {std::pair{64, 96}, std::pair{300, 257}, std::pair{1024, 512}}) {
        check_layer([=, i = inputs, o = outputs] { return with_dtype(dense(i, o, Activation::silu), dtype); },
                    random_tensor({batch, static_cast<std::size_t>(inputs)}, 3),
                    "Dense " + std::to_string(inputs) + " x " + std::to_string(outputs) + " batch " +
                        std::to_string(batch) + " in " + std::string(name(dtype)));
      }
    }
  }
}

TEST_F(NetworkCudaTest, EveryActivation) {
  for (const Activation activation :
       {Activation::linear, Activation::relu, Activation::silu, Activation::gelu, Activation::tanh, Activation::sigmoid,
        Activation::leaky_relu, Activation::relu2}) {
    check_layer([=] { return dense(40, 33, activation); }, random_tensor({5, 40}, 3, 3),
                "Dense with " + std::string(name(activation)));
    check_layer([=] { return convolution(2, {.channels = 3, .filters = 4, .kernel = 3, .height = 9}, activation); },
                random_tensor({2, 3, 9, 9}, 4), "CNN2 with " + std::string(name(activation)));
  }
}

TEST_F(NetworkCudaTest, AttentionOfManyShapes) {
  for (const auto& [heads, kv_heads, head_dim] :
       {std::tuple{4, 4, 0}, std::tuple{8, 2, 16}, std::tuple{3, 1, 7}, std::tuple{2, 2, 1}}) {
    for (const std::size_t steps : {1u, 5u, 70u}) {
      for (const bool norms : {false, true}) {
        const int width = 24;
        const auto make = [=, h = heads, k = kv_heads, d = head_dim] {
          Layer layer = attention({.width = width, .heads = h, .kv_heads = k, .head_dim = d});
          if (norms) {
            const std::size_t values = static_cast<std::size_t>(d == 0 ? width / h : d);
            layer.config.q_norm.assign(values, 0.5f);
            layer.config.k_norm.assign(values * static_cast<std::size_t>(k), 1.5f);
            layer.config.k_norm.front() = 0.25f;
            layer.config.inner_norm.assign(values * static_cast<std::size_t>(h), 0.75f);
          }
          return layer;
        };
        check_layer(make, random_tensor({3, steps, 24}, 7),
                    "attention " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads, " +
                        std::to_string(steps) + " steps" + (norms ? ", norms" : ""),
                    5e-5);
      }
    }
  }
}

TEST_F(NetworkCudaTest, Convolutions) {
  for (const int axes : {1, 2, 3}) {
    for (const int kernel : {1, 3, 4}) {
      for (const int stride : {1, 2, 3}) {
        const ConvolutionShape shape{.channels = 3,
                                     .filters = 5,
                                     .kernel = kernel,
                                     .stride = stride,
                                     .padding = kernel / 2,
                                     .height = 7,
                                     .width = axes > 1 ? 6 : 0};
        std::vector<std::size_t> extents{4, 3};
        for (int axis = 0; axis < axes; ++axis) extents.push_back(axes == 1 ? 7 : axis == axes - 1 ? 6 : 7);
        const std::string what =
            std::to_string(axes) + " axes, kernel " + std::to_string(kernel) + ", stride " + std::to_string(stride);
        check_layer([=] { return convolution(axes, shape, Activation::tanh); }, random_tensor(Shape(extents), 9),
                    "convolution, " + what);
        extents.resize(2);
        for (int axis = 0; axis < axes; ++axis) extents.push_back(axes == 1 ? 7 : axis == axes - 1 ? 6 : 7);
        if (axes > 1) {
          check_layer([=] { return transposed_convolution(axes, shape, Activation::tanh); },
                      random_tensor(Shape(extents), 9), "transposed convolution, " + what);
        }
      }
    }
  }
}

TEST_F(NetworkCudaTest, EmbeddingOfIdsThatNameNoRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor<float> ids({2, 4}, {0, 99, 100, -0.5f, -1, 3.9f, nan, 1e9f});
  for (const DType dtype : {DType::float32, DType::int8, DType::float16, DType::int4}) {
    check_layer([=] { return with_dtype(embedding(100, 37), dtype); }, ids, "Embedding in " + std::string(name(dtype)));
  }
}

TEST_F(NetworkCudaTest, EverySoftmax) {
  for (int type = 0; type <= static_cast<int>(SoftmaxType::entmax); ++type) {
    if (static_cast<SoftmaxType>(type) == SoftmaxType::gumbel) continue;  // draws anew at each forward
    const auto make = [=] {
      Layer layer = softmax(static_cast<SoftmaxType>(type));
      layer.config.temperature = 0.7;
      layer.config.softmax_rows = 3;
      layer.config.softmax_cols = 4;
      layer.config.mask = {true, false, true, true};
      return layer;
    };
    check_layer(make, random_tensor({5, 12}, 3, 4), "Softmax " + std::string(name(static_cast<SoftmaxType>(type))));
  }
  Network network(layer_list(softmax(SoftmaxType::gumbel)));
  const Tensor<float> x = random_tensor({5, 12}, 3, 4);
  network.set_run_seed(7);
  const Tensor<float> wanted = network.forward(x);
  network.run_on(device());
  network.set_run_seed(7);
  expect_close(network.forward(x), wanted, 2e-5, "Softmax gumbel");
}

TEST_F(NetworkCudaTest, RowsOfOtherLayers) {
  check_layer([] { return kmeans(33, 9, 0.5); }, random_tensor({6, 33}, 1), "KMeans");
  check_layer([] { return kmeans(33, 9, 2, "features"); }, random_tensor({6, 33}, 1), "KMeans, features");
  check_layer([] { return rnn(20, 33, 7); }, random_tensor({3, 7, 20}, 1), "RNN");
  check_layer([] { return lstm(20, 33, 7); }, random_tensor({3, 7, 20}, 1), "LSTM");
  check_layer([] { return rms_norm(600, 1e-3); }, random_tensor({9, 600}, 1), "RMSNorm");
  check_layer([] { return layer_norm(600); }, random_tensor({9, 600}, 1), "LayerNorm");
  const auto gated = [] {
    Layer layer = swiglu(40, 70);
    layer.config.inner_norm.assign(70, 0.5f);
    return layer;
  };
  check_layer(gated, random_tensor({9, 40}, 1), "SwiGLU with a norm");
}

TEST_F(NetworkCudaTest, Containers) {
  for (const char* mode : {"concat", "add", "avg"}) {
    check_layer([=] { return parallel(mode, layer_list(dense(7, 7), dense(7, 7, Activation::tanh), rms_norm(7))); },
                random_tensor({3, 7}, 1), std::string("Parallel ") + mode);
  }
  check_layer([] { return parallel("concat", layer_list(dense(7, 2), dense(7, 5), rms_norm(7))); },
              random_tensor({3, 7}, 1), "Parallel of unequal branches");
  check_layer([] { return mixture(dense(7, 4), layer_list(dense(7, 5), dense(7, 5), dense(7, 5))); },
              random_tensor({3, 7}, 1), "Parallel with a gate");
  check_layer([] { return sequential(layer_list(dense(7, 7), residual(), swiglu(7, 20), residual())); },
              random_tensor({3, 7}, 1), "Sequential");
}

TEST_F(NetworkCudaTest, LinksDisabledLayersAndLayersOnTheHost) {
  std::vector<Layer> layers =
      layer_list(dense(7, 7, Activation::relu),
                 sequential(layer_list(dense(7, 7), residual(), rms_norm(7), softmax(SoftmaxType::sparse))),
                 parallel("concat", layer_list(remote_link({0, 0, 0, 0}), dense(7, 3))), dense(10, 10),
                 metacognition(dense(10, 6), {}));
  Network network(std::move(layers));
  network.layers()[3].config.is_disabled = true;
  for (Layer& layer : network.layers()) randomize_layer(layer, 11);
  check_network(network, random_tensor({4, 7}, 2), "a mixed network");
}

TEST_F(NetworkCudaTest, FollowsChangesOfWeightsTypesAndBatches) {
  Network network(layer_list(dense(40, 64, Activation::relu), rms_norm(64), dense(64, 10)));
  network.run_on(device());
  network.forward(random_tensor({5, 40}, 1));
  for (const DType dtype : {DType::float32, DType::int8, DType::float16}) {
    for (const std::size_t batch : {1u, 20u, 3u}) {
      morph_network(network, dtype);
      network.layers()[0].weights->randomize(batch, 1);
      network.layers()[1].weights->randomize(batch + 1, 1);
      const Tensor<float> x = random_tensor({batch, 40}, 1);
      network.run_on(device());
      const Tensor<float> got = network.forward(x);
      network.run_on(nullptr);
      expect_close(got, network.forward(x), 2e-5, std::string(name(dtype)) + ", batch " + std::to_string(batch));
      network.run_on(device());
    }
  }
}

TEST_F(NetworkCudaTest, AResultMayBeFedBack) {
  Network network(layer_list(dense(12, 12, Activation::tanh)));
  const Tensor<float> x = random_tensor({3, 12}, 1);
  const Tensor<float> wanted = network.forward(network.forward(x));
  network.run_on(device());
  expect_close(network.forward(network.forward(x)), wanted, 2e-5, "the second forward");
}

TEST_F(NetworkCudaTest, ErrorsNameTheLayer) {
  Network network(layer_list(dense(12, 12)));
  network.run_on(device());
  try {
    network.forward(random_tensor({3, 7}, 1));
    FAIL() << "an input that does not fit";
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("layer (0,0,0,0), Dense"), std::string::npos) << error.what();
  }
  Network disabled(layer_list(dense(12, 12)));
  disabled.layers()[0].config.is_disabled = true;
  disabled.run_on(device());
  EXPECT_EQ(disabled.forward(random_tensor({3, 7}, 1)).size(), 21u);
}

}  // namespace
}  // namespace imago
