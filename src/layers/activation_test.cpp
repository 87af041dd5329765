#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "imago/error.h"
#include "layers/linear.h"

namespace imago::layers {
namespace {

constexpr Activation kAll[] = {Activation::linear, Activation::relu,    Activation::silu,       Activation::gelu,
                               Activation::tanh,   Activation::sigmoid, Activation::leaky_relu, Activation::relu2};

double value(Activation activation, double x) {
  switch (activation) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return 1 / (1 + std::exp(-x));
    case Activation::leaky_relu: return x < 0 ? 0.01 * x : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
  }
  return x;
}

/// By differences of the function itself, so that no formula of a derivative is trusted [D3].
double slope(Activation activation, double x) {
  const double h = 1e-5 * std::max(1.0, std::abs(x));
  return (value(activation, x + h) - value(activation, x - h)) / (2 * h);
}

/// Away from 0, where some have a kink; long enough for several chunks and threads.
std::vector<float> points() {
  std::vector<float> z;
  for (int i = 0; i < 40'000; ++i) {
    const float x = static_cast<float>(i % 2001 - 1000) * 0.0123f;
    z.push_back(std::abs(x) < 1e-3f ? 0.5f : x);
  }
  return z;
}

std::vector<float> derivative(Activation activation, const std::vector<float>& z) {
  std::vector<float> result(z.size());
  activation_backward(activation, z, std::vector<float>(z.size(), 1.0f), result);
  return result;
}

TEST(Activation, AppliesItsFunction) {
  const std::vector<float> z = points();
  for (const Activation activation : kAll) {
    std::vector<float> y(z.size());
    apply_activation(activation, z, y);
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double wanted = value(activation, static_cast<double>(z[i]));
      ASSERT_NEAR(static_cast<double>(y[i]), wanted, 2e-6 * std::max(1.0, std::abs(wanted))) << name(activation);
    }
    std::vector<float> in_place = z;
    apply_activation(activation, in_place, in_place);
    EXPECT_EQ(in_place, y) << name(activation);
  }
}

TEST(Activation, BackwardIsTheSlopeOfTheFunction) {
  const std::vector<float> z = points();
  for (const Activation activation : kAll) {
    const std::vector<float> got = derivative(activation, z);
    for (std::size_t i = 0; i < z.size(); ++i) {
      const double wanted = slope(activation, static_cast<double>(z[i]));
      ASSERT_NEAR(static_cast<double>(got[i]), wanted, 3e-6 * std::max(1.0, std::abs(wanted)))
          << name(activation) << " at " << z[i];
    }
  }
}

TEST(Activation, BackwardMultipliesTheGradientAlsoInPlace) {
  const std::vector<float> z = points();
  for (const Activation activation : kAll) {
    const std::vector<float> slopes = derivative(activation, z);
    std::vector<float> gradient(z.size());
    for (std::size_t i = 0; i < z.size(); ++i) gradient[i] = static_cast<float>(i % 7) - 3;
    std::vector<float> wanted(z.size());
    for (std::size_t i = 0; i < z.size(); ++i) wanted[i] = gradient[i] * slopes[i];
    activation_backward(activation, z, gradient, gradient);
    EXPECT_EQ(gradient, wanted) << name(activation);
  }
}

TEST(Activation, KinksAndEndsHaveTheSlopeOfTheSpec) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> z{0, kInfinity, -kInfinity, 1e30f, -1e30f};
  EXPECT_EQ(derivative(Activation::relu, z), (std::vector<float>{0, 1, 0, 1, 0}));
  EXPECT_EQ(derivative(Activation::leaky_relu, z), (std::vector<float>{0.01f, 1, 0.01f, 1, 0.01f}));
  EXPECT_EQ(derivative(Activation::relu2, z), (std::vector<float>{0, kInfinity, 0, 2e30f, 0}));
  EXPECT_EQ(derivative(Activation::tanh, z), (std::vector<float>{1, 0, 0, 0, 0}));
  EXPECT_EQ(derivative(Activation::sigmoid, z), (std::vector<float>{0.25f, 0, 0, 0, 0}));
  EXPECT_EQ(derivative(Activation::gelu, z), (std::vector<float>{0.5f, 1, 0, 1, 0}));
  const std::vector<float> silu = derivative(Activation::silu, z);
  EXPECT_EQ(silu[0], 0.5f);
  EXPECT_EQ(silu[1], 1.0f);
  EXPECT_NEAR(silu[2], 0.0f, 1e-30f);
}

TEST(Activation, UnknownIdsBehaveAsLinear) {
  const std::vector<float> z{-2, 0, 3};
  std::vector<float> y(3);
  apply_activation(static_cast<Activation>(99), z, y);
  EXPECT_EQ(y, z);
  EXPECT_EQ(derivative(static_cast<Activation>(99), z), std::vector<float>(3, 1.0f));
}

TEST(Activation, LengthsMustAgree) {
  std::vector<float> two(2);
  std::vector<float> three(3);
  EXPECT_THROW(apply_activation(Activation::relu, two, three), ShapeError);
  EXPECT_THROW(activation_backward(Activation::relu, two, three, two), ShapeError);
  EXPECT_THROW(activation_backward(Activation::relu, two, two, three), ShapeError);
}

}  // namespace
}  // namespace imago::layers
