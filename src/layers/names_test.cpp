#include <gtest/gtest.h>

#include <string>

#include "imago/error.h"
#include "imago/layer.h"

namespace imago {
namespace {

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

// Names and numbers of checkpoints, typed in by hand.
constexpr const char* kTypes[] = {"Dense",
                                  "MultiHeadAttention",
                                  "SwiGLU",
                                  "RMSNorm",
                                  "CNN1",
                                  "CNN2",
                                  "CNN3",
                                  "RNN",
                                  "LSTM",
                                  "LayerNorm",
                                  "ConvTransposed1D",
                                  "ConvTransposed2D",
                                  "ConvTransposed3D",
                                  "Embedding",
                                  "KMeans",
                                  "Softmax",
                                  "Parallel",
                                  "Sequential",
                                  "Residual",
                                  "Metacognition"};
constexpr const char* kActivations[] = {"ReLU", "Silu", "GELU", "Tanh", "Sigmoid", "LeakyReLU", "ReLU2"};
constexpr const char* kSoftmaxes[] = {"Standard", "Grid",   "Hierarchical", "Temperature", "Gumbel",
                                      "Masked",   "Sparse", "Adaptive",     "Mixture",     "Entmax"};

TEST(Names, OfLayerTypesGoBothWays) {
  for (int id = 0; id < kLayerTypes; ++id) {
    const LayerType type = static_cast<LayerType>(id);
    EXPECT_EQ(name(type), kTypes[id]);
    EXPECT_EQ(parse_layer_type(kTypes[id]), type);
    EXPECT_EQ(parse_layer_type(upper(kTypes[id])), type);
  }
  EXPECT_EQ(parse_layer_type("mha"), LayerType::multi_head_attention);
  EXPECT_EQ(parse_layer_type("Attention"), LayerType::multi_head_attention);
  EXPECT_EQ(parse_layer_type("META"), LayerType::metacognition);
}

TEST(Names, OfActivationsGoBothWays) {
  for (int id = 0; id < 7; ++id) {
    const Activation activation = static_cast<Activation>(id);
    EXPECT_EQ(name(activation), kActivations[id]);
    EXPECT_EQ(parse_activation(kActivations[id]), activation);
    EXPECT_EQ(parse_activation(upper(kActivations[id])), activation);
  }
  EXPECT_EQ(name(Activation::linear), "Linear");
  EXPECT_EQ(static_cast<int>(Activation::linear), -1);
  EXPECT_EQ(parse_activation("linear"), Activation::linear);
  EXPECT_EQ(parse_activation(""), Activation::linear);
  EXPECT_EQ(parse_activation("leaky_relu"), Activation::leaky_relu);
  EXPECT_EQ(parse_activation("6"), Activation::relu2);
}

TEST(Names, OfSoftmaxTypesGoBothWays) {
  for (int id = 0; id < 10; ++id) {
    const SoftmaxType type = static_cast<SoftmaxType>(id);
    EXPECT_EQ(name(type), kSoftmaxes[id]);
    EXPECT_EQ(parse_softmax_type(upper(kSoftmaxes[id])), type);
  }
  EXPECT_EQ(parse_softmax_type(""), SoftmaxType::standard);
}

TEST(Names, UnknownOnesAreErrorsThatListTheKnown) {
  EXPECT_THROW(parse_layer_type(""), UsageError);
  EXPECT_THROW(parse_layer_type("GRU"), UsageError);
  EXPECT_THROW(parse_layer_type("Densee"), UsageError);
  EXPECT_THROW(parse_activation("swish"), UsageError);
  EXPECT_THROW(parse_softmax_type("soft"), UsageError);
  try {
    parse_activation("swish");
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("swish"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("LeakyReLU"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace imago
