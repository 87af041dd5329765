// Losses against PyTorch, against their formulas in float64, and their gradients against finite differences.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "imago/train.h"
#include "imago/weights.h"
#include "testing/safetensors.h"

namespace imago {
namespace {

Tensor<float> random_tensor(const Shape& shape, std::uint64_t seed, float range) {
  WeightStore store(shape.elements());
  store.randomize(seed, range);
  return Tensor<float>(shape, {store.master().begin(), store.master().end()});
}

/// Rows that are positive and add up to 1.
Tensor<float> random_shares(std::size_t rows, std::size_t cols, std::uint64_t seed) {
  Tensor<float> shares = random_tensor({rows, cols}, seed, 1);
  for (std::size_t row = 0; row < rows; ++row) {
    float sum = 0;
    for (std::size_t i = 0; i < cols; ++i) sum += shares[row * cols + i] = std::fabs(shares[row * cols + i]) + 0.01f;
    for (std::size_t i = 0; i < cols; ++i) shares[row * cols + i] /= sum;
  }
  return shares;
}

void expect_near(std::span<const float> got, std::span<const float> wanted, double tolerance) {
  ASSERT_EQ(got.size(), wanted.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], tolerance) << "element " << i;
}

/// The gradient against central differences. The loss is computed in double from float outputs, so the step is taken
/// as the outputs really moved.
void expect_gradient_fits(const Loss& loss, Tensor<float> output, const Tensor<float>& target, float step = 0x1p-11f) {
  Tensor<float> gradient;
  const double value = evaluate_loss(loss, output, target, &gradient);
  EXPECT_EQ(value, evaluate_loss(loss, output, target));
  ASSERT_EQ(gradient.shape(), output.shape());
  double slopes = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    const float middle = output[i];
    output[i] = middle + step;
    const double above = output[i], high = evaluate_loss(loss, output, target);
    output[i] = middle - step;
    const double below = output[i], low = evaluate_loss(loss, output, target);
    output[i] = middle;
    EXPECT_NEAR(gradient[i], (high - low) / (above - below), 2e-4) << name(loss.kind) << ", element " << i;
    slopes += std::fabs(gradient[i]);
  }
  EXPECT_GT(slopes, 0.1);  // the comparison above was not one of zeros
}

TEST(Loss, MeanSquaredErrorIsThatOfTorch) {
  const testing::SafetensorsFile file("torch/loss_mse.safetensors");
  const Tensor<float> output(Shape(file.shape("y")), file.values<float>("y"));
  const Tensor<float> target(Shape(file.shape("target")), file.values<float>("target"));
  Tensor<float> gradient;
  EXPECT_NEAR(evaluate_loss({}, output, target, &gradient), file.values<float>("loss")[0], 1e-6);
  expect_near(gradient.values(), file.values<float>("dy"), 1e-7);
}

TEST(Loss, CrossEntropyOfLogitsIsThatOfTorch) {
  const testing::SafetensorsFile file("torch/loss_cross_entropy_logits.safetensors");
  const Tensor<float> output(Shape(file.shape("y")), file.values<float>("y"));
  const Tensor<float> target(Shape(file.shape("target")), file.values<float>("target"));
  Tensor<float> gradient;
  const Loss loss{.kind = LossKind::cross_entropy_logits};
  EXPECT_NEAR(evaluate_loss(loss, output, target, &gradient), file.values<float>("loss")[0], 1e-5);
  expect_near(gradient.values(), file.values<float>("dy"), 1e-6);
}

TEST(Loss, ClassNumbersAreOneHotRows) {
  const Tensor<float> output = random_tensor({3, 5}, 1, 4);
  const Tensor<float> classes({3}, {4, 0, 2});
  Tensor<float> one_hot({3, 5});
  one_hot[4] = one_hot[5] = one_hot[12] = 1;
  const Loss loss{.kind = LossKind::cross_entropy_logits};
  Tensor<float> by_class, by_share;
  EXPECT_NEAR(evaluate_loss(loss, output, classes, &by_class), evaluate_loss(loss, output, one_hot, &by_share), 1e-6);
  expect_near(by_class.values(), by_share.values(), 1e-7);
}

TEST(Loss, RowsOfClassMinusOneAreNotScored) {
  const Loss loss{.kind = LossKind::cross_entropy_logits};
  const Tensor<float> all = random_tensor({3, 4}, 2, 2);
  const Tensor<float> two({2, 4}, {all[0], all[1], all[2], all[3], all[8], all[9], all[10], all[11]});
  Tensor<float> gradient, wanted;
  EXPECT_DOUBLE_EQ(evaluate_loss(loss, all, Tensor<float>({3}, {1, -1, 3}), &gradient),
                   evaluate_loss(loss, two, Tensor<float>({2}, {1, 3}), &wanted));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(gradient[i], wanted[i]);
    EXPECT_EQ(gradient[4 + i], 0);
    EXPECT_EQ(gradient[8 + i], wanted[4 + i]);
  }
  EXPECT_EQ(evaluate_loss(loss, all, Tensor<float>({3}, {-1, -1, -1}), &gradient), 0);
  for (const float slope : gradient.values()) EXPECT_EQ(slope, 0);
}

TEST(Loss, LogitsFarApartStayFinite) {
  const Loss loss{.kind = LossKind::cross_entropy_logits};
  Tensor<float> gradient;
  const Tensor<float> output({1, 3}, {1000, -1000, 0});
  EXPECT_NEAR(evaluate_loss(loss, output, Tensor<float>({1}, {1}), &gradient), 2000, 1e-3);
  expect_near(gradient.values(), std::vector<float>{1, -1, 0}, 1e-6);
}

TEST(Loss, GradientsFitFiniteDifferences) {
  const Tensor<float> logits = random_tensor({4, 6}, 3, 2);
  expect_gradient_fits({}, logits, random_tensor({4, 6}, 4, 2));
  expect_gradient_fits({.kind = LossKind::cross_entropy}, random_shares(4, 6, 5), random_shares(4, 6, 6), 0x1p-16f);
  expect_gradient_fits({.kind = LossKind::cross_entropy_logits}, logits, random_shares(4, 6, 7), 0x1p-8f);
  expect_gradient_fits({.kind = LossKind::cross_entropy_logits}, logits, Tensor<float>({4}, {0, 5, -1, 3}), 0x1p-8f);
}

TEST(Loss, CrossEntropyIsItsFormula) {
  const Loss loss{.kind = LossKind::cross_entropy};
  const Tensor<float> output({1, 2}, {0.25f, 0});
  const Tensor<float> target({1, 2}, {0.5f, 0.5f});
  Tensor<float> gradient;
  EXPECT_NEAR(evaluate_loss(loss, output, target, &gradient),
              -(0.5 * std::log(0.25 + 1e-10) + 0.5 * std::log(1e-10)) / 2, 1e-9);
  EXPECT_NEAR(gradient[0], -1, 1e-6);
  EXPECT_NEAR(gradient[1], -0.5 / 1e-10 / 2, 1e3);
}

/// One head after the other, with a softmax of its own [D35].
double heads_by_hand(const Tensor<float>& output, const Tensor<float>& target, const std::vector<int>& heads,
                     const std::vector<float>& mask) {
  const std::size_t cols = output.shape().last(), rows = output.size() / cols;
  double sum = 0;
  for (std::size_t row = 0; row < rows; ++row) {
    std::size_t first = row * cols;
    for (std::size_t head = 0; head < heads.size(); ++head) {
      const std::size_t width = static_cast<std::size_t>(heads[head]);
      double normalizer = 0;
      for (std::size_t i = first; i < first + width; ++i) normalizer += std::exp(static_cast<double>(output[i]));
      for (std::size_t i = first; i < first + width && (mask.empty() || mask[row * heads.size() + head] > 0.5f); ++i) {
        sum -= static_cast<double>(target[i]) * std::log(std::exp(static_cast<double>(output[i])) / normalizer + 1e-7);
      }
      first += width;
    }
  }
  return sum / static_cast<double>(rows);
}

TEST(Loss, AnyNumberOfHeadsEachWithASoftmax) {
  for (const std::vector<int>& heads : {std::vector<int>{6}, {2, 4}, {1, 2, 3}, {1, 1, 2, 2}}) {
    Loss loss{.kind = LossKind::multi_head_softmax_ce, .heads = heads};
    const Tensor<float> output = random_tensor({4, 6}, 8, 2);
    Tensor<float> target({4, 6});  // one-hot in each head, where (p - t) / rows is the slope
    for (std::size_t row = 0; row < 4; ++row) {
      std::size_t first = row * 6;
      for (const int head : heads) {
        target[first + row % static_cast<std::size_t>(head)] = 1;
        first += static_cast<std::size_t>(head);
      }
    }
    EXPECT_NEAR(evaluate_loss(loss, output, target), heads_by_hand(output, target, heads, {}), 1e-9);
    expect_gradient_fits(loss, output, target);

    loss.mask.assign(4 * heads.size(), 1);
    loss.mask[0] = 0.5f;  // not active: it must exceed one half
    loss.mask.back() = 0;
    EXPECT_NEAR(evaluate_loss(loss, output, target), heads_by_hand(output, target, heads, loss.mask), 1e-9);
    expect_gradient_fits(loss, output, target);
    Tensor<float> gradient;
    evaluate_loss(loss, output, target, &gradient);
    EXPECT_EQ(gradient[0], 0);
    EXPECT_EQ(gradient[23], 0);
  }
}

TEST(Loss, WhatIsNotANumberIsSeen) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const LossKind kind :
       {LossKind::mse, LossKind::cross_entropy, LossKind::cross_entropy_logits, LossKind::multi_head_softmax_ce}) {
    for (std::size_t at = 0; at < 20; ++at) {
      Tensor<float> output = random_shares(1, 20, 1);
      output[at] = nan;
      const Loss loss{.kind = kind, .heads = {20}};
      EXPECT_FALSE(std::isfinite(evaluate_loss(loss, output, random_shares(1, 20, 2)))) << name(kind) << " at " << at;
    }
  }
}

TEST(Loss, TheSameForEveryNumberOfThreads) {
  const int before = pool_threads();
  const Tensor<float> output = random_tensor({700, 100}, 9, 2);
  for (const LossKind kind : {LossKind::mse, LossKind::cross_entropy_logits}) {
    std::vector<double> values;
    std::vector<std::vector<float>> gradients;
    for (const int threads : {1, 2, 3}) {
      set_pool_threads(threads);
      Tensor<float> gradient;
      values.push_back(evaluate_loss({.kind = kind}, output, random_shares(700, 100, 10), &gradient));
      gradients.emplace_back(gradient.values().begin(), gradient.values().end());
    }
    EXPECT_EQ(values[0], values[1]);
    EXPECT_EQ(values[0], values[2]);
    EXPECT_EQ(gradients[0], gradients[1]);
    EXPECT_EQ(gradients[0], gradients[2]);
  }
  set_pool_threads(before);
}

TEST(Loss, RefusesSizesThatDoNotFit) {
  const Tensor<float> output({2, 3});
  EXPECT_THROW(evaluate_loss({}, output, Tensor<float>({2, 2})), ShapeError);
  EXPECT_THROW(evaluate_loss({}, Tensor<float>({0, 3}), Tensor<float>({0, 3})), ShapeError);
  const Loss classes{.kind = LossKind::cross_entropy_logits};
  EXPECT_THROW(evaluate_loss(classes, output, Tensor<float>({3})), ShapeError);
  for (const float bad : {3.0f, -2.0f, 0.5f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THROW(evaluate_loss(classes, output, Tensor<float>({2}, {0, bad})), UsageError) << bad;
  }
  Loss heads{.kind = LossKind::multi_head_softmax_ce, .heads = {1, 1}};
  EXPECT_THROW(evaluate_loss(heads, output, output), ShapeError);
  heads.heads = {4, -1};
  EXPECT_THROW(evaluate_loss(heads, output, output), UsageError);
  heads.heads = {1, 2};
  heads.mask = {1, 1, 1};
  EXPECT_THROW(evaluate_loss(heads, output, output), ShapeError);
}

TEST(Loss, HasNames) {
  EXPECT_EQ(parse_loss("mse"), LossKind::mse);
  EXPECT_EQ(parse_loss("crossentropy"), LossKind::cross_entropy);
  EXPECT_EQ(parse_loss("cross_entropy"), LossKind::cross_entropy);
  EXPECT_EQ(name(LossKind::cross_entropy), "cross_entropy");
  for (const LossKind kind :
       {LossKind::mse, LossKind::cross_entropy, LossKind::cross_entropy_logits, LossKind::multi_head_softmax_ce}) {
    EXPECT_EQ(parse_loss(name(kind)), kind);
  }
  try {
    parse_loss("hinge");
    FAIL();
  } catch (const UsageError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("hinge"), std::string::npos);
    EXPECT_NE(text.find("multi_head_softmax_ce"), std::string::npos);
  }
}

}  // namespace
}  // namespace imago
