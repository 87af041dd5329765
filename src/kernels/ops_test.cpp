// Every row of every operation against float64 arithmetic written out here. Bounds are relative to the scale on which
// an operation rounds: `ref` rounds once, the others within 1e-5.

#include "kernels/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "kernels/ops_table.h"
#include "testing/random_values.h"

namespace imago::kernels {

namespace {

using testing::gaussian;

// Around one vector of 8 and 16 lanes, one chunk of sums (1024), and a width of real models.
constexpr std::size_t kCounts[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1023, 1024, 1025, 4096 + 5};

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kTiny = std::numeric_limits<float>::min();

/// The folder of kernels under test: "avx512", "avx2", "neon", "ref".
class Ops : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    const CpuFeatures needs = row<ScaleArgs>().needs;
    if ((needs & host_cpu_features()) != needs) GTEST_SKIP() << "this processor cannot run " << GetParam();
  }

  template <class Args>
  const OpKernel<Args>& row() const {
    for (const OpKernel<Args>& r : all_ops<Args>()) {
      if (r.name.ends_with("/" + GetParam())) return r;
    }
    throw UsageError("no row of " + GetParam());
  }

  /// Runs `args` with its output, `count` values, between others that it must not touch.
  template <class Args>
  std::vector<float> run(Args args, float* Args::*output, std::vector<float> start) const {
    constexpr std::size_t kGuards = 17;
    constexpr float kGuard = 12345.678f;
    std::vector<float> buffer(start.size() + 2 * kGuards, kGuard);
    std::copy(start.begin(), start.end(), buffer.begin() + kGuards);
    args.*output = buffer.data() + kGuards;
    row<Args>().run(args);
    EXPECT_EQ(std::count(buffer.begin(), buffer.begin() + kGuards, kGuard), kGuards) << "writes before the start";
    EXPECT_EQ(std::count(buffer.end() - kGuards, buffer.end(), kGuard), kGuards) << "writes past the end";
    return {buffer.begin() + kGuards, buffer.end() - kGuards};
  }

  double bound(double fast) const { return GetParam() == "ref" ? 1.2e-7 : fast; }
};

std::vector<std::string> folders() {
  std::vector<std::string> names;
  for (const auto& row : all_ops<ScaleArgs>()) names.push_back(row.name.substr(row.name.find('/') + 1));
  return names;
}
INSTANTIATE_TEST_SUITE_P(Folders, Ops, ::testing::ValuesIn(folders()), [](const auto& row) { return row.param; });

std::vector<double> rms_norm_in_double(const std::vector<float>& x, const std::vector<double>& weight, double eps) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    y.push_back(x[i] / std::sqrt(squares / static_cast<double>(x.size()) + eps) * weight[i]);
  }
  return y;
}

TEST_P(Ops, RmsNorm) {
  for (const std::size_t cols : kCounts) {
    // 1e-30 has squares that vanish, 1e25 squares that overflow.
    for (const float size : {1.0f, 1e-3f, 1e-30f, 1e-42f, 1e25f, 1e37f, 0.0f}) {
      for (const float offset : {0.0f, 1.0f}) {
        const std::vector<float> x = gaussian(2 * cols, 1, size);
        const std::vector<float> weight = gaussian(cols, 2);
        const std::vector<float> y = run<RmsNormArgs>({.x = x.data(),
                                                       .y = nullptr,
                                                       .rows = 2,
                                                       .cols = cols,
                                                       .weight = weight.data(),
                                                       .weight_offset = offset,
                                                       .eps = 1e-6f},
                                                      &RmsNormArgs::y, std::vector<float>(2 * cols));
        std::vector<double> factors(weight.begin(), weight.end());
        for (double& factor : factors) factor += offset;
        for (std::size_t r = 0; r < 2; ++r) {
          const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * cols);
          const auto wanted = rms_norm_in_double({begin, begin + static_cast<std::ptrdiff_t>(cols)}, factors, 1e-6f);
          for (std::size_t i = 0; i < cols; ++i) {
            // weight + 1 is rounded on the scale of the 1, hence the second term.
            const double scale = std::fabs(wanted[i]) + (offset == 0 ? 0 : std::fabs(wanted[i] / factors[i]));
            ASSERT_NEAR(y[r * cols + i], wanted[i], bound(2e-6) * scale + kTiny) << cols << " of " << size;
          }
        }
      }
    }
  }
}

TEST_P(Ops, RmsNormWithoutWeight) {
  const std::vector<float> x = {3, -4};
  const std::vector<float> y = run<RmsNormArgs>(
      {.x = x.data(), .y = nullptr, .rows = 1, .cols = 2, .weight = nullptr, .weight_offset = 0, .eps = 0},
      &RmsNormArgs::y, std::vector<float>(2));
  EXPECT_FLOAT_EQ(y[0], 3 / std::sqrt(12.5f));
  EXPECT_FLOAT_EQ(y[1], -4 / std::sqrt(12.5f));
}

TEST_P(Ops, LayerNorm) {
  for (const std::size_t cols : kCounts) {
    for (const float mean : {0.0f, 1.0f, 1000.0f}) {  // in float32, a sum around 1000 loses the deviations of 1
      const std::vector<float> x = gaussian(cols, 3, 1, mean);
      const std::vector<float> gamma = gaussian(cols, 4);
      for (const std::vector<float>& beta : {gaussian(cols, 5), std::vector<float>()}) {
        const std::vector<float> y = run<LayerNormArgs>({.x = x.data(),
                                                         .y = nullptr,
                                                         .rows = 1,
                                                         .cols = cols,
                                                         .gamma = gamma.data(),
                                                         .beta = beta.empty() ? nullptr : beta.data(),
                                                         .eps = 1e-5f},
                                                        &LayerNormArgs::y, std::vector<float>(cols));
        double sum = 0, squares = 0;
        for (const float v : x) sum += v;
        const double mu = sum / static_cast<double>(cols);
        for (const float v : x) squares += (v - mu) * (v - mu);
        const double root = std::sqrt(squares / static_cast<double>(cols) + double{1e-5f});
        for (std::size_t i = 0; i < cols; ++i) {
          const double offset = beta.empty() ? 0 : beta[i];
          const double normal = (x[i] - mu) / root;
          const double scale = (std::fabs(normal) + 1) * std::fabs(gamma[i]) + std::fabs(offset);
          ASSERT_NEAR(y[i], normal * gamma[i] + offset, bound(5e-6) * scale) << cols << " around " << mean;
        }
      }
    }
  }
}

std::vector<double> softmax_in_double(const std::vector<float>& x, double scale, double cap) {
  std::vector<double> t(x.begin(), x.end());
  for (double& v : t) v = std::isinf(v) ? v : cap > 0 ? cap * std::tanh(v * scale / cap) : v * scale;
  const double largest = *std::max_element(t.begin(), t.end());
  double sum = 0;
  for (double& v : t) sum += v = std::isinf(v) ? 0 : std::exp(v - largest);
  for (double& v : t) v = sum == 0 ? 0 : v / sum;
  return t;
}

TEST_P(Ops, Softmax) {
  for (const std::size_t cols : kCounts) {
    for (const float size : {0.0f, 1.0f, 30.0f, 1e30f}) {
      for (const float scale : {1.0f, 0.088388f}) {
        for (const float cap : {0.0f, 50.0f}) {
          for (const std::size_t masked_every : {0, 3, 1}) {
            std::vector<float> x = gaussian(cols, 6, size);
            if (masked_every > 0) {
              for (std::size_t i = 0; i < cols; i += masked_every) x[i] = -kInfinity;
            }
            const std::vector<double> wanted = softmax_in_double(x, scale, cap);
            const std::vector<float> y = run<SoftmaxArgs>(
                {.x = nullptr, .rows = 1, .cols = cols, .scale = scale, .cap = cap}, &SoftmaxArgs::x, x);
            for (std::size_t i = 0; i < cols; ++i) {
              // Capped scores are rounded on the scale of the cap.
              ASSERT_NEAR(y[i], wanted[i], bound(cap > 0 ? 2e-5 : 1e-5) * wanted[i] + kTiny) << cols << " of " << size;
            }
          }
        }
      }
    }
  }
}

TEST_P(Ops, RopeTurnsPairs) {
  for (const std::size_t head_values : {2, 16, 40, 64, 80, 128}) {
    for (const std::size_t rotary : {head_values, head_values / 4 * 2}) {
      for (const RopePairs pairs : {RopePairs::halves, RopePairs::adjacent}) {
        const RopeTable table({.rotary = rotary, .base = 500}, 8);
        const std::vector<float> x = gaussian(3 * head_values, 7);
        const std::vector<float> y = run<RopeArgs>({.x = nullptr,
                                                    .heads = 3,
                                                    .head_values = head_values,
                                                    .rotary = rotary,
                                                    .cos_sin = table.at(7).data(),
                                                    .pairs = pairs},
                                                   &RopeArgs::x, x);
        std::vector<double> wanted(x.begin(), x.end());
        for (std::size_t head = 0; head < 3; ++head) {
          for (std::size_t j = 0; j < rotary / 2; ++j) {
            const std::size_t a = head * head_values + (pairs == RopePairs::halves ? j : 2 * j);
            const std::size_t b = pairs == RopePairs::halves ? a + rotary / 2 : a + 1;
            const double angle = 7 * std::pow(500.0, -2.0 * static_cast<double>(j) / static_cast<double>(rotary));
            wanted[a] = x[a] * std::cos(angle) - x[b] * std::sin(angle);
            wanted[b] = x[a] * std::sin(angle) + x[b] * std::cos(angle);
          }
        }
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(y[i], wanted[i], 1e-6) << i << " of " << head_values;
      }
    }
  }
}

struct Function {
  Activation id;
  double (*value)(double);
};
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
constexpr Function kFunctions[] = {
    {Activation::linear, [](double x) { return x; }},
    {Activation::relu, [](double x) { return std::max(x, 0.0); }},
    {Activation::relu2, [](double x) { return x > 0 ? x * x : 0; }},
    {Activation::leaky_relu, [](double x) { return x < 0 ? 0.01 * x : x; }},
    {Activation::silu, [](double x) { return x * sigmoid(x); }},
    {Activation::gelu,
     [](double x) { return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x))); }},
    {Activation::tanh, [](double x) { return std::tanh(x); }},
    {Activation::sigmoid, sigmoid},
    {Activation::gelu_erf, [](double x) { return x / 2 * std::erfc(-x / std::numbers::sqrt2); }},
    {Activation::clamped_swish, [](double x) { return std::min(x, 7.0) * sigmoid(1.702 * std::min(x, 7.0)); }},
};
static_assert(std::size(kFunctions) == kActivationCount);

TEST_P(Ops, ActivationsFollowTheirFormulas) {
  std::vector<float> x = {0.0f, -0.0f, 1e-42f, -1e-42f, 1e-20f, -1e-20f, 0.625f, -0.625f, 88.0f, -88.0f, 90.0f, -90.0f};
  for (int i = -4000; i <= 4000; ++i) x.push_back(static_cast<float>(i) * 0.005f);  // -20 … 20
  for (int i = -300; i <= 300; ++i) x.push_back(static_cast<float>(i) * 0.29f);     // -87 … 87: all of exp
  const std::vector<float> up = gaussian(x.size(), 8, 5);                           // some beyond ±7
  for (const Function& f : kFunctions) {
    for (const bool gated : {false, true}) {
      const std::vector<float> y = run<ActivateArgs>(
          {.x = x.data(), .up = gated ? up.data() : nullptr, .y = nullptr, .count = x.size(), .function = f.id},
          &ActivateArgs::y, std::vector<float>(x.size()));
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double other = f.id == Activation::clamped_swish ? 1 + std::clamp<double>(up[i], -7, 7) : up[i];
        const double wanted = f.value(x[i]) * (gated ? other : 1);
        // The argument of exp in these is rounded: by 88 · 2^-24 at the most. The formula of gelu cancels to 1e-16 · x,
        // the sum in clamped_swish to 2^-24 of the other factor.
        const bool is_rounded =
            f.id == Activation::gelu || f.id == Activation::gelu_erf || f.id == Activation::clamped_swish;
        const double slack = is_rounded ? 1e-6 * std::fabs(f.value(x[i])) + 1e-6 * std::fabs(wanted) + 1e-14 : 0;
        // e^-x overflows at -89, where sigmoid is still 1e-39 and silu 1e-37: hence the last term.
        ASSERT_NEAR(y[i], wanted, bound(is_rounded ? 1e-5 : 5e-7) * std::fabs(wanted) + slack + 100 * kTiny)
            << "function " << static_cast<int>(f.id) << " at " << x[i];
      }
    }
  }
}

TEST_P(Ops, ActivationsAtInfinityAndNaN) {
  const std::vector<float> x = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 3e38f, -3e38f};
  const auto apply = [&](Activation function) {
    return run<ActivateArgs>({.x = x.data(), .up = nullptr, .y = nullptr, .count = x.size(), .function = function},
                             &ActivateArgs::y, std::vector<float>(x.size()));
  };
  const std::vector<float> s = apply(Activation::sigmoid), t = apply(Activation::tanh);
  EXPECT_EQ((std::vector<float>{s[0], s[1], s[3], s[4]}), (std::vector<float>{1, 0, 1, 0}));
  EXPECT_EQ((std::vector<float>{t[0], t[1], t[3], t[4]}), (std::vector<float>{1, -1, 1, -1}));
  for (const Function& f : kFunctions) EXPECT_TRUE(std::isnan(apply(f.id)[2])) << static_cast<int>(f.id);
}

TEST_P(Ops, ActivationsOfEveryLength) {
  for (const std::size_t count : kCounts) {
    const std::vector<float> x = gaussian(count, 9);
    const std::vector<float> y =
        run<ActivateArgs>({.x = x.data(), .up = nullptr, .y = nullptr, .count = count, .function = Activation::silu},
                          &ActivateArgs::y, std::vector<float>(count));
    for (std::size_t i = 0; i < count; ++i) ASSERT_NEAR(y[i], x[i] * sigmoid(x[i]), 1e-6) << i << " of " << count;
  }
}

TEST_P(Ops, SumsAndProducts) {
  for (const std::size_t count : kCounts) {
    const std::vector<float> x = gaussian(count, 10), before = gaussian(count, 11);
    const std::vector<float> sum =
        run<AddScaledArgs>({.x = x.data(), .y = nullptr, .count = count, .factor = 0.3f}, &AddScaledArgs::y, before);
    const std::vector<float> product =
        run<ScaleArgs>({.x = x.data(), .y = nullptr, .count = count, .factor = 0.3f}, &ScaleArgs::y, before);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_NEAR(sum[i], double{before[i]} + double{x[i]} * double{0.3f}, 1.2e-7 * (std::fabs(sum[i]) + kTiny));
      ASSERT_EQ(product[i], x[i] * 0.3f);
    }
  }
}

TEST_P(Ops, QuantizedTokensAreTheDefinition) {
  std::mt19937 random(12);
  for (const std::size_t cols : kCounts) {
    for (const float size : {0.0f, 1.0f, 1e-30f, 1e-37f, 1e-42f, 3e37f, kInfinity}) {
      std::vector<float> x = gaussian(cols, static_cast<std::uint32_t>(random()), std::isinf(size) ? 1 : size);
      if (std::isinf(size)) x[cols / 2] = cols % 2 == 0 ? -size : std::nanf("");
      if (size == 1) x[0] = 127;  // a scale of 1, with halves and their neighbours as far as there is room
      constexpr float kHalves[] = {0.5f, -0.5f, 1.5f, -63.5f, 0x1.fffffep-2f, -0x1.fffffep-2f, 0x1.000002p-1f};
      for (std::size_t i = 0; size == 1 && i < std::size(kHalves) && i + 1 < cols; ++i) x[i + 1] = kHalves[i];
      const std::vector<Int8Block> wanted = quantize_activations(x);
      std::vector<std::int8_t> q(wanted.size() * 32, 99);
      std::vector<float> scales(wanted.size(), 99), sums(wanted.size() * 2, 99);
      row<QuantizeArgs>().run(
          {.x = x.data(), .cols = cols, .q = q.data(), .scales = scales.data(), .sums16 = sums.data()});
      for (std::size_t b = 0; b < wanted.size(); ++b) {
        ASSERT_EQ(std::memcmp(q.data() + b * 32, wanted[b].q, 32), 0)
            << "block " << b << " of " << cols << ", " << size;
        ASSERT_EQ(scales[b], wanted[b].scale);
        for (std::size_t half = 0; half < 2; ++half) {
          int sum = 0;
          for (std::size_t i = 0; i < 16; ++i) sum += wanted[b].q[half * 16 + i];
          ASSERT_EQ(sums[b * 2 + half], wanted[b].scale * static_cast<float>(sum));
        }
      }
    }
  }
}

}  // namespace

}  // namespace imago::kernels
