#include "layers/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "imago/error.h"
#include "testing/gradient_check.h"

namespace imago::layers {
namespace {

using testing::random_tensor;

// A layer whose array holds, as attention does, several parts: 5 weights, a 7 × 6 matrix, 3 weights, a bias of 7.
constexpr Linear kPart{.matrix = {.first = 5, .rows = 7, .cols = 6}, .bias_first = 50};
constexpr std::size_t kCount = 57;
constexpr std::size_t kBatch = 4;

Layer layer_in(DType dtype) {
  Layer layer = with_dtype(dense(1, static_cast<int>(kCount)), dtype);
  layer.weights.emplace(kCount).randomize(3, 0.7f);
  return layer;
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

TEST(Linear, ForwardMultipliesWithDecodedWeightsInEveryType) {
  const Tensor<float> x = random_tensor({kBatch, 6}, 1);
  for (const DTypeInfo& type : kDTypes) {
    const Layer layer = layer_in(type.id);
    const std::vector<float> weights = layer.weights->active(type.id);
    for (const bool for_backward : {false, true}) {
      layers::Run run;
      run.for_backward = for_backward;
      for (const std::size_t bias_first : {kPart.bias_first, kNoBias}) {
        std::vector<float> y(kBatch * 7);
        linear_forward(layer, {kPart.matrix, bias_first}, x.values(), kBatch, y, run);
        for (std::size_t t = 0; t < kBatch; ++t) {
          for (std::size_t r = 0; r < 7; ++r) {
            const double bias = bias_first == kNoBias ? 0 : static_cast<double>(weights[bias_first + r]);
            const double wanted = bias + dot(x.values().subspan(t * 6, 6), std::span(weights).subspan(5 + r * 6, 6));
            ASSERT_NEAR(static_cast<double>(y[t * 7 + r]), wanted, 2e-5 * (1 + std::abs(wanted)))
                << type.name << (for_backward ? " training" : "");
          }
        }
      }
    }
  }
}

TEST(Linear, BackwardAddsToItsPartsAndWritesTheInput) {
  const Layer layer = layer_in(DType::int8);
  const std::vector<float> weights = layer.weights->active(DType::int8);
  const Tensor<float> x = random_tensor({kBatch, 6}, 1);
  const Tensor<float> grad_y = random_tensor({kBatch, 7}, 2);
  std::vector<float> gradient(kCount, 10.0f);
  std::vector<float> grad_x(kBatch * 6, 100.0f);
  linear_backward(layer, kPart, x.values(), kBatch, grad_y.values(), gradient, grad_x);
  std::vector<double> wanted(kCount, 10.0);
  for (std::size_t t = 0; t < kBatch; ++t) {
    for (std::size_t r = 0; r < 7; ++r) {
      const double g = static_cast<double>(grad_y[t * 7 + r]);
      for (std::size_t c = 0; c < 6; ++c) wanted[5 + r * 6 + c] += g * static_cast<double>(x[t * 6 + c]);
      wanted[50 + r] += g;
    }
  }
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_NEAR(static_cast<double>(gradient[i]), wanted[i], 1e-5) << i;
  const std::vector<float> once = grad_x;
  for (std::size_t t = 0; t < kBatch; ++t) {
    for (std::size_t c = 0; c < 6; ++c) {
      double sum = 0;
      for (std::size_t r = 0; r < 7; ++r) {
        sum += static_cast<double>(grad_y[t * 7 + r]) * static_cast<double>(weights[5 + r * 6 + c]);
      }
      EXPECT_NEAR(static_cast<double>(once[t * 6 + c]), sum, 1e-5);
    }
  }
  linear_backward(layer, kPart, x.values(), kBatch, grad_y.values(), gradient, grad_x, true);
  for (std::size_t i = 0; i < grad_x.size(); ++i) EXPECT_NEAR(grad_x[i], 2 * once[i], 1e-5f) << "added";
  linear_backward(layer, kPart, x.values(), kBatch, grad_y.values(), gradient, {});
}

TEST(Linear, SpansThatDoNotFitAreShapeErrorsThatNameTheLayer) {
  Layer layer = layer_in(DType::float32);
  layer.at = {1, 2, 3, 4};
  std::vector<float> x(kBatch * 6);
  std::vector<float> y(kBatch * 7);
  std::vector<float> gradient(kCount);
  const layers::Run run;
  EXPECT_THROW(linear_forward(layer, kPart, std::span(x).first(23), kBatch, y, run), ShapeError);
  EXPECT_THROW(linear_forward(layer, kPart, x, kBatch, std::span(y).first(27), run), ShapeError);
  EXPECT_THROW(linear_backward(layer, kPart, x, kBatch, y, std::span(gradient).first(56), {}), ShapeError);
  EXPECT_THROW(linear_backward(layer, kPart, x, kBatch, y, gradient, std::span(x).first(5)), ShapeError);
  try {
    rows_of(layer, Tensor<float>(Shape{3, 5}), 4);
    FAIL();
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("(1,2,3,4)"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[3, 5]"), std::string::npos) << error.what();
  }
  EXPECT_EQ(rows_of(layer, Tensor<float>(Shape{3, 4}), 6), 2u);
}

TEST(Linear, ResizeRowsReplacesTheWidth) {
  Tensor<float> result;
  resize_rows(result, Tensor<float>(Shape{2, 3, 4}), 4, 5);
  EXPECT_EQ(result.shape(), (Shape{2, 3, 5}));
  resize_rows(result, Tensor<float>(Shape{2, 3, 4}), 8, 5);
  EXPECT_EQ(result.shape(), (Shape{3, 5}));
  resize_rows(result, Tensor<float>(Shape{4}), 4, 1);
  EXPECT_EQ(result.shape(), (Shape{1}));
  resize_rows(result, Tensor<float>(Shape{3, 4}), 4, 1);
  EXPECT_EQ(result.shape(), (Shape{3, 1}));
  resize_rows(result, Tensor<float>(Shape{2, 4}), 4, 1);
  EXPECT_EQ(result.shape(), (Shape{2, 1}));
}

}  // namespace
}  // namespace imago::layers
