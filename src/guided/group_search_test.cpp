#include "guided/descent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "testing/random_values.h"

namespace imago::guided {
namespace {

/// A group of columns that go together, and a scale that its weights have now.
struct Example {
  explicit Example(std::size_t columns, float products_off_diagonal)
      : count(columns), weights(testing::random_values(columns, 1)), products(columns * columns) {
    const std::vector<float> common = testing::random_values(columns, 2);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < count; ++k) {
        products[i * count + k] = i == k ? 1 : products_off_diagonal * common[i] * common[k];
      }
    }
  }

  void round(const Levels& levels, float scale) {
    errors.clear();
    for (const float weight : weights) errors.push_back(weight - scale * levels.value(levels.nearest(weight / scale)));
    slopes.assign(count, 0);
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t k = 0; k < count; ++k) slopes[k] += errors[i] * products[i * count + k];
    }
  }

  /// e (H + damping) eᵀ of weights less scale · values - offset.
  double error_of(std::span<const float> values, float scale, float offset) const {
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double error = static_cast<double>(weights[i] - (scale * values[i] - offset));
      sum += error * error * static_cast<double>(damping);
      for (std::size_t k = 0; k < count; ++k) {
        const double other = static_cast<double>(weights[k] - (scale * values[k] - offset));
        sum += error * other * static_cast<double>(products[i * count + k]);
      }
    }
    return sum;
  }

  ColumnGroup group() const { return {count, weights.data(), errors, slopes.data(), products.data(), count, damping}; }

  std::size_t count;
  float damping = 0.1f;
  std::vector<float> weights, products, errors, slopes;
};

TEST(GroupSearch, FindsTheBestOfAllThatWereTried) {
  const Levels levels = Levels::of(DType::int4);
  Example example(16, 0.3f);
  const float before = 0.9f;
  example.round(levels, before);
  std::vector<float> values_before;
  for (std::size_t i = 0; i < example.count; ++i) {
    values_before.push_back((example.weights[i] - example.errors[i]) / before);
  }
  const Four scales{0.2f, 0.3f, 0.4f, 0.5f}, offsets{0, 0.01f, -0.01f, 0.02f};
  GroupSearch all(levels), alone(levels);
  all.begin(example.group());
  all.attempt({{scales, offsets}});
  ASSERT_TRUE(all.found());
  const double found = example.error_of(all.values(), all.scale(), all.offset());
  EXPECT_LT(found, example.error_of(values_before, before, 0));
  for (std::size_t i = 0; i < scales.size(); ++i) {
    alone.begin(example.group());
    alone.attempt({{{scales[i], scales[i], scales[i], scales[i]}, {offsets[i], offsets[i], offsets[i], offsets[i]}}});
    if (!alone.found()) continue;
    EXPECT_LE(found, example.error_of(alone.values(), alone.scale(), alone.offset()) * (1 + 1e-5));
  }
  // A worse scale changes nothing, and a new search knows nothing of the last one.
  const float best = all.scale();
  all.attempt({{{5, 5, 5, 5}, {}}});
  EXPECT_EQ(all.scale(), best);
  all.begin(example.group());
  all.attempt({{{5, 5, 5, 5}, {}}});
  EXPECT_FALSE(all.found());
}

TEST(GroupSearch, TrialsTogetherAreTrialsInOrder) {
  for (const DType dtype : {DType::int4, DType::fp4, DType::fp8e4m3}) {
    const Levels levels = Levels::of(dtype);
    Example example(32, 0.3f);
    example.round(levels, 3);
    const float near = 1.1f / levels.high();
    const Trial a{{near, 2 * near, 3 * near, 4 * near}, {}}, b{{0.7f * near, near, near, near}, {0, 0.02f, -0.02f, 0}},
        c{{0.9f * near, 0.8f * near, 1.2f * near, near}, {0.01f, 0, 0.03f, 0.01f}};
    GroupSearch in_order(levels), together(levels);
    const auto expect_same = [&] {
      ASSERT_TRUE(together.found()) << name(dtype);
      EXPECT_EQ(together.scale(), in_order.scale());
      EXPECT_EQ(together.offset(), in_order.offset());
      EXPECT_TRUE(std::ranges::equal(together.values(), in_order.values())) << name(dtype);
    };
    in_order.begin(example.group());
    in_order.attempt({a});
    in_order.attempt({b});
    together.begin(example.group());
    together.attempt({a, b});
    expect_same();
    in_order.attempt({c});
    together.begin(example.group());
    together.attempt({a, b, c});
    expect_same();
  }
}

TEST(GroupSearch, ColumnsThatDoNotGoTogetherTakeTheirNearestLevels) {
  for (const DType dtype : {DType::int4, DType::int2, DType::int8, DType::fp4, DType::fp8e4m3, DType::ternary}) {
    const Levels levels = Levels::of(dtype);
    Example example(32, 0);
    example.round(levels, 3);
    const float scale = 1.1f / levels.high();
    GroupSearch search(levels);
    search.begin(example.group());
    search.attempt({{{scale, scale, scale, scale}, {}}});
    ASSERT_TRUE(search.found()) << name(dtype);
    for (std::size_t i = 0; i < example.count; ++i) {
      EXPECT_EQ(search.values()[i], levels.value(levels.nearest(example.weights[i] / scale))) << name(dtype);
    }
  }
}

}  // namespace
}  // namespace imago::guided
