#include "imago/numeric.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"

namespace imago {
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();

TEST(Shape, ScalarHasOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0u);
  EXPECT_EQ(scalar.elements(), 1u);
  EXPECT_EQ(scalar.last(), 1u);
  EXPECT_EQ(scalar.to_string(), "[]");
  EXPECT_EQ(scalar, Shape(std::vector<std::size_t>{}));
}

TEST(Shape, ExtentsOutermostFirst) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3u);
  EXPECT_EQ(shape.elements(), 24u);
  EXPECT_EQ(shape[0], 2u);
  EXPECT_EQ(shape.last(), 4u);
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_THROW(shape[3], std::out_of_range);
}

TEST(Shape, ComparesExtentsNotCounts) {
  EXPECT_EQ((Shape{2, 6}), (Shape{2, 6}));
  EXPECT_NE((Shape{2, 6}), (Shape{6, 2}));
  EXPECT_NE((Shape{1}), Shape());
}

TEST(Shape, CountThatOverflowsIsAShapeError) {
  EXPECT_EQ((Shape{kMost, 1}).elements(), kMost);
  EXPECT_THROW((Shape{kMost, 2}), ShapeError);
  EXPECT_THROW((Shape{std::size_t{1} << 32, std::size_t{1} << 32}), ShapeError);
}

TEST(Shape, AnExtentOfZeroEmptiesItWhereverItStands) {
  EXPECT_EQ((Shape{0}).elements(), 0u);
  EXPECT_EQ((Shape{3, 0, 5}).elements(), 0u);
  EXPECT_EQ((Shape{0, kMost, kMost}).elements(), 0u);
  EXPECT_EQ((Shape{kMost, kMost, 0}).elements(), 0u);
}

TEST(Tensor, DefaultIsAZeroScalar) {
  const Tensor<float> scalar;
  EXPECT_EQ(scalar.shape(), Shape());
  ASSERT_EQ(scalar.size(), 1u);
  EXPECT_EQ(scalar[0], 0.0f);
}

TEST(Tensor, EmptyTensorHasNoElements) {
  const Tensor<float> empty(Shape{4, 0});
  EXPECT_EQ(empty.size(), 0u);
  EXPECT_TRUE(empty.values().empty());
  EXPECT_EQ(cast_tensor<Int4>(empty, 1.0f).shape(), (Shape{4, 0}));
}

TEST(Tensor, ElementsMustFillTheShape) {
  EXPECT_NO_THROW(Tensor<float>(Shape{2, 2}, {1, 2, 3, 4}));
  EXPECT_THROW(Tensor<float>(Shape{2, 2}, {1, 2, 3}), ShapeError);
  EXPECT_THROW(Tensor<float>(Shape{0}, {1}), ShapeError);
  try {
    const Tensor<float> wrong(Shape{2, 3}, {1});
    FAIL();
  } catch (const ShapeError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("[2, 3]"), std::string::npos) << text;
  }
}

TEST(Tensor, CopiesAreIndependent) {
  Tensor<float> original(Shape{2}, {1, 2});
  const Tensor<float> copy = original;
  original[0] = 9;
  EXPECT_EQ(copy[0], 1.0f);
}

TEST(Tensor, ReshapedKeepsElementsInOrder) {
  const Tensor<float> flat(Shape{6}, {0, 1, 2, 3, 4, 5});
  const Tensor<float> matrix = flat.reshaped(Shape{2, 3});
  EXPECT_EQ(matrix.shape(), (Shape{2, 3}));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(matrix[i], static_cast<float>(i));
  EXPECT_THROW(flat.reshaped(Shape{2, 2}), ShapeError);
  EXPECT_EQ((Tensor<float>(Shape{1, 1}, {7}).reshaped(Shape()).shape()), Shape());
}

// One instance of this per type proves that the templates work for all 21 without listing them.
template <Numeric T>
void expect_casts_like_values(const Tensor<float>& weights, float scale) {
  const Tensor<T> codes = cast_tensor<T>(weights, scale);
  EXPECT_EQ(codes.dtype(), dtype_of<T>);
  EXPECT_EQ(codes.shape(), weights.shape());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    EXPECT_EQ(codes[i], (quantize_value<T>(weights[i], scale))) << name(dtype_of<T>) << " element " << i;
  }
  const Tensor<T> column = codes.reshaped(Shape{codes.size(), 1});
  EXPECT_EQ(column.shape().rank(), 2u);
}

TEST(Tensor, CastsToEveryType) {
  const Tensor<float> weights(Shape{2, 3}, {-1.0f, -0.26f, 0.0f, 0.3f, 0.74f, 1e3f});
  for (const DTypeInfo& type : kDTypes) {
    visit(type.id, [&]<class T>(std::type_identity<T>) { expect_casts_like_values<T>(weights, 0.25f); });
  }
}

TEST(Tensor, CastKnownCodes) {
  const Tensor<Int4> codes = cast_tensor<Int4>(Tensor<float>(Shape{4}, {0.5f, -0.5f, 100.0f, 0.74f}), 0.5f);
  EXPECT_EQ(codes[0].value, 1);
  EXPECT_EQ(codes[1].value, -1);
  EXPECT_EQ(codes[2].value, 7);
  EXPECT_EQ(codes[3].value, 1);
}

}  // namespace
}  // namespace imago
