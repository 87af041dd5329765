// Tokens chosen on the GPU against a walk over sorted candidates, as Sampler does it.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cuda/ops.h"
#include "testing/gpu_ops_fixture.h"
#include "testing/random_values.h"

namespace imago::kernels::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Settings {
  float temperature;
  int top_k;
  float top_p, min_p;
};

struct Choice {
  std::int32_t id;
  double
      margin;  // how far the random number is from where another token would be chosen, or a cut would fall differently
};

Choice choose(const std::vector<float>& logits, const Settings& s, double random) {
  std::vector<std::int32_t> order;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > -kInfinity) order.push_back(static_cast<std::int32_t>(i));
  }
  if (order.empty()) return {-1, 1};
  const auto logit = [&](std::int32_t id) { return logits[static_cast<std::size_t>(id)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  if (s.temperature == 0 || logit(order.front()) == kInfinity) return {order.front(), 1};
  if (s.top_k != 0) order.resize(std::min<std::size_t>(order.size(), static_cast<std::size_t>(s.top_k)));
  const auto probabilities = [&](double temperature) {
    std::vector<double> p;
    for (const auto id : order) p.push_back(std::exp((double{logit(id)} - logit(order.front())) / temperature));
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
    return p;
  };
  double margin = 1;
  if (s.top_p < 1) {
    const std::vector<double> p = probabilities(1);
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      sum += p[i];
      margin = std::min(margin, std::fabs(sum - double{s.top_p}));
      if (sum >= double{s.top_p}) {
        order.resize(i + 1);
        break;
      }
    }
  }
  if (s.min_p > 0) {
    const double lowest = logit(order.front()) + std::log(double{s.min_p});
    std::erase_if(order, [&](auto id) { return logit(id) < lowest; });
  }
  const std::vector<double> p = probabilities(s.temperature);
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    sum += p[i];
    margin = std::min(margin, std::fabs(sum - random));
    if (sum > random) return {order[i], margin};
  }
  return {order.back(), 0};
}

SampleChoice choice_of(const Settings& s, double random) {
  return {.temperature = s.temperature, .top_p = s.top_p, .min_p = s.min_p, .top_k = s.top_k, .random = random};
}

class CudaSample : public OpsFixture {
 protected:
  std::int32_t sampled(const OnDevice<float>& logits, const Settings& s, double random) {
    OnDevice<std::int32_t> out = zeros<std::int32_t>(1);
    const SampleChoice row = choice_of(s, random);
    sample(logits.data(), {&row, 1}, logits.size(), out.data(), stream());
    stream().wait();
    return out.values()[0];
  }
};

TEST_F(CudaSample, ChoosesAsTheSampler) {
  const Settings settings[] = {{1, 40, 0.95f, 0.05f}, {0.8f, 0, 1, 0},     {0.8f, 0, 0.9f, 0}, {1.5f, 0, 0.99f, 0.01f},
                               {1, 1, 1, 0},          {1, 256, 0.5f, 0},   {2, 100, 1, 0.2f},  {0, 40, 0.9f, 0.1f},
                               {0.3f, 5, 1, 0},       {1, 3000, 0.97f, 0}, {5, 0, 1, 0}};
  int close = 0, compared = 0;
  for (const std::size_t count : {1, 2, 100, 1023, 5000, 128256}) {
    for (const float spread : {0.01f, 3.0f}) {
      const std::vector<float> logits = testing::gaussian(count, 20, spread);
      const OnDevice<float> gpu = up(logits);
      for (const Settings& s : settings) {
        for (const double random : {0.0, 0.1234, 0.5, 0.87, 0.9999}) {
          const Choice wanted = choose(logits, s, random);
          const std::int32_t got = sampled(gpu, s, random);
          ++compared;
          if (wanted.margin < 1e-6) {
            ++close;  // rounding decides
            continue;
          }
          ASSERT_EQ(got, wanted.id) << "of " << count << ", spread " << spread << ", temperature " << s.temperature
                                    << ", top_k " << s.top_k << ", top_p " << s.top_p << ", min_p " << s.min_p
                                    << ", random " << random;
        }
      }
    }
  }
  EXPECT_LT(close, compared / 10);
}

TEST_F(CudaSample, DrawsAmongEqualsByNumber) {
  std::vector<float> logits(5000, 1.0f);
  for (const double random : {0.0, 0.25, 0.75, 0.99999}) {
    EXPECT_EQ(sampled(up(logits), {1, 0, 1, 0}, random), static_cast<std::int32_t>(random * 5000));
    EXPECT_EQ(sampled(up(logits), {1, 100, 1, 0}, random), static_cast<std::int32_t>(random * 100));
  }
  for (std::size_t i = 0; i < logits.size(); i += 2) logits[i] = -0.0f;
  for (std::size_t i = 1; i < logits.size(); i += 2) logits[i] = 0.0f;
  EXPECT_EQ(sampled(up(logits), {1, 0, 1, 0}, 0.5), 2500) << "both zeros are one";
}

TEST_F(CudaSample, HostileLogits) {
  const float nan = std::nanf("");
  EXPECT_EQ(sampled(up(std::vector<float>{nan, -kInfinity, 3, nan}), {1, 0, 1, 0}, 0.9), 2);
  EXPECT_EQ(sampled(up(std::vector<float>{nan, -kInfinity, nan}), {1, 0, 1, 0}, 0.9), -1);
  EXPECT_EQ(sampled(up(std::vector<float>{1, kInfinity, kInfinity}), {1, 0, 1, 0}, 0.9), 1);
  EXPECT_EQ(sampled(up(std::vector<float>{-3e38f, 3e38f, 0}), {1, 2, 0.9f, 0}, 0.999), 1);
}

TEST_F(CudaSample, EachRowHasItsChoice) {
  constexpr std::size_t kRows = 150, kCols = 1001;  // more than one launch takes, and rows that are not aligned
  const std::vector<float> logits = testing::gaussian(kRows * kCols, 21, 3);
  const OnDevice<float> gpu = up(logits);
  const Settings settings[] = {{1, 0, 1, 0}, {0, 0, 1, 0}, {0.7f, 40, 0.95f, 0.05f}, {1.3f, 0, 0.9f, 0}};
  std::vector<SampleChoice> rows;
  for (std::size_t i = 0; i < kRows; ++i) {
    rows.push_back(choice_of(settings[i % 4], static_cast<double>(i * 37 % kRows) / kRows));
  }
  const OnDevice<std::int32_t> out = zeros<std::int32_t>(kRows);
  sample(gpu.data(), rows, kCols, out.data(), stream());
  stream().wait();
  for (std::size_t i = 0; i < kRows; ++i) {
    const auto row = logits.begin() + static_cast<std::ptrdiff_t>(i * kCols);
    const Choice wanted = choose({row, row + kCols}, settings[i % 4], rows[i].random);
    if (wanted.margin < 1e-6) continue;  // rounding decides
    EXPECT_EQ(out.values()[i], wanted.id) << i;
  }
}

TEST_F(CudaSample, Argmax) {
  const float nan = std::nanf("");
  std::vector<float> x = testing::gaussian(4 * 5001, 22);
  x[5001 + 17] = x[5001 + 4000] = 100;      // a draw
  x[2 * 5001] = nan, x[2 * 5001 + 3] = 99;  // NaN does not win
  for (std::size_t i = 0; i < 5001; ++i) x[3 * 5001 + i] = i % 2 == 0 ? nan : -kInfinity;
  const OnDevice<float> gpu = up(x);
  const OnDevice<std::int32_t> out = zeros<std::int32_t>(4);
  argmax(gpu.data(), 4, 5001, out.data(), stream());
  stream().wait();
  const auto largest = std::max_element(x.begin(), x.begin() + 5001) - x.begin();
  EXPECT_EQ(out.values(), (std::vector<std::int32_t>{static_cast<std::int32_t>(largest), 17, 3, 1}));
}

TEST_F(CudaSample, ArgmaxOfLongRows) {
  for (const std::size_t cols : {16385, 40001, 128256}) {
    std::vector<float> x = testing::gaussian(2 * cols, 23);
    for (const std::size_t at : {std::size_t{0}, cols / 8, cols / 2 + 1, cols - 1}) {
      x[at] = x[cols + at] = 100;
      x[cols + cols / 3] = 100;  // a draw, but for what stands before it
      const OnDevice<float> gpu = up(x);
      const OnDevice<std::int32_t> out = zeros<std::int32_t>(2);
      argmax(gpu.data(), 2, cols, out.data(), stream());
      stream().wait();
      EXPECT_EQ(out.values(), (std::vector<std::int32_t>{static_cast<std::int32_t>(at),
                                                         static_cast<std::int32_t>(std::min(at, cols / 3))}))
          << cols;
      x[at] = x[cols + at] = 0;
    }
  }
}

}  // namespace
}  // namespace imago::kernels::cuda
