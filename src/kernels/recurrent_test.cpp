// Short convolutions and scans of every instruction set against plain computations in float64 written out here; cut
// into pieces; on several threads.

#include "kernels/recurrent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops_table.h"
#include "testing/random_values.h"

namespace imago::kernels {
namespace {

using testing::gaussian;

constexpr double kNear = 2e-5;

void expect_near(const std::vector<float>& made, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(made.size(), wanted.size());
  double worst = 0;
  for (std::size_t i = 0; i < made.size(); ++i) {
    worst = std::max(worst, std::fabs(static_cast<double>(made[i]) - wanted[i]) / (1 + std::fabs(wanted[i])));
  }
  EXPECT_LE(worst, kNear) << what;
}

/// Every row of the table that this processor can run: IMAGO_KERNELS chooses among them in the same way.
class Recurrent : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder = GetParam();
    for (const auto& row : all_ops<LinearScanArgs>()) {
      if (!row.name.ends_with("/" + folder)) continue;
      if (!within(row.needs, host_cpu_features())) GTEST_SKIP() << "this processor cannot run " << folder;
      return;
    }
    GTEST_SKIP() << "not of this kind of processor: " << folder;
  }
  template <class Args>
  void run(const Args& args) const {
    for (const auto& row : all_ops<Args>()) {
      if (row.name.ends_with(std::string("/") + GetParam())) row.run(args);
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Folders, Recurrent, ::testing::Values("avx512", "avx2", "neon", "ref"),
                         [](const auto& one) { return std::string(one.param); });

struct Conv {
  std::size_t tokens, channels, kernel;
  std::vector<float> x = gaussian(tokens * channels, 1), taps = gaussian(kernel * channels, 2),
                     bias = gaussian(channels, 3), state = gaussian((kernel - 1) * channels, 4);

  std::vector<double> wanted(bool silu) const {
    std::vector<double> y;
    for (std::size_t t = 0; t < tokens; ++t) {
      for (std::size_t c = 0; c < channels; ++c) {
        double sum = bias[c];
        for (std::size_t k = 0; k < kernel; ++k) {
          const std::size_t row = t + k;  // of the state and then x
          const float seen = row < kernel - 1 ? state[row * channels + c] : x[(row - (kernel - 1)) * channels + c];
          sum += double{taps[k * channels + c]} * seen;
        }
        y.push_back(silu ? sum / (1 + std::exp(-sum)) : sum);
      }
    }
    return y;
  }
};

TEST_P(Recurrent, ShortConvolutionsAreThoseOfFloat64) {
  for (const std::size_t channels : {1U, 7U, 16U, 33U}) {
    for (const std::size_t kernel : {1U, 3U, 4U, 8U}) {
      const Conv conv{.tokens = 5, .channels = channels, .kernel = kernel};
      for (const std::size_t first : {0U, 3U}) {
        std::vector<float> y((conv.tokens - first) * channels), state = conv.state;
        run(ShortConvArgs{.x = conv.x.data(),
                          .y = y.data(),
                          .taps = conv.taps.data(),
                          .bias = conv.bias.data(),
                          .state = state.data(),
                          .tokens = conv.tokens,
                          .first_result = first,
                          .channels = channels,
                          .stride = channels,
                          .kernel = kernel,
                          .activation = first == 0 ? Activation::silu : Activation::linear});
        std::vector<double> wanted = conv.wanted(first == 0);
        wanted.erase(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(first * channels));
        expect_near(y, wanted, std::to_string(channels) + " channels, kernel " + std::to_string(kernel));
        // What the next call sees: the last rows of state and x together.
        std::vector<float> all = conv.state;
        all.insert(all.end(), conv.x.begin(), conv.x.end());
        EXPECT_TRUE(std::equal(state.begin(), state.end(), all.end() - static_cast<std::ptrdiff_t>(state.size())));
      }
    }
  }
}

TEST_P(Recurrent, StepSizesAreThoseOfFloat64) {
  constexpr std::size_t kCols = 21;
  std::vector<float> x = gaussian(3 * kCols, 5, 6), bias = gaussian(kCols, 6), rate = gaussian(kCols, 7);
  x[0] = -40;  // as small as steps get, and larger than any that is taken
  x[1] = 100;
  for (float& r : rate) r = -std::exp(r);
  for (const float high : {0.5F, 1e30F}) {
    std::vector<float> step(x.size()), decay(x.size());
    run(StepSizeArgs{.x = x.data(),
                     .rows = 3,
                     .cols = kCols,
                     .bias = bias.data(),
                     .rate = rate.data(),
                     .step = step.data(),
                     .decay = decay.data(),
                     .low = 0,
                     .high = high});
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double sum = double{x[i]} + double{bias[i % kCols]};
      const double wanted = std::clamp(sum > 30 ? sum : std::log1p(std::exp(sum)), 0.0, double{high});
      EXPECT_NEAR(step[i], wanted, 5e-6 * wanted) << sum;  // x + bias is rounded
      EXPECT_NEAR(decay[i], std::exp(wanted * rate[i % kCols]), 1e-5) << sum;
    }
  }
}

struct Scan {
  LinearScanShape shape;
  std::size_t tokens;
  std::vector<float> channels = gaussian(tokens * shape.channels(), 8, 0.5F), skip = gaussian(shape.heads, 9),
                     decay = gaussian(tokens * shape.heads, 10), strength = gaussian(tokens * shape.heads, 11),
                     state = gaussian(shape.state(), 12);

  Scan(const LinearScanShape& of, std::size_t count) : shape(of), tokens(count) {
    for (float& one : decay) one = 1 / (1 + std::exp(-one));
    for (float& one : strength) one = 1 / (1 + std::exp(-one));
  }

  /// Where the state has the value of a key in a column of a head.
  std::size_t place(std::size_t head, std::size_t key, std::size_t column) const {
    const std::size_t tile = column / kStateColumns * kStateColumns;
    const std::size_t width = std::min(kStateColumns, shape.values - tile);
    return head * shape.keys * shape.values + tile * shape.keys + key * width + (column - tile);
  }

  std::vector<double> wanted(std::vector<double>& s) const {
    s.assign(state.begin(), state.end());
    std::vector<double> y;
    const std::size_t all = shape.groups * shape.keys;
    for (std::size_t t = 0; t < tokens; ++t) {
      const float* const row = channels.data() + t * shape.channels();
      for (std::size_t h = 0; h < shape.heads; ++h) {
        const std::size_t group = shape.tiled ? h % shape.groups : h / (shape.heads / shape.groups);
        const float* const v = row + (shape.delta ? 2 * all : 0) + h * shape.values;
        const float* const k = row + (shape.delta ? all : shape.results()) + group * shape.keys;
        const float* const q = row + (shape.delta ? 0 : shape.results() + all) + group * shape.keys;
        const double d = decay[t * shape.heads + h], b = strength[t * shape.heads + h];
        for (std::size_t j = 0; j < shape.values; ++j) {
          double found = 0, sum = double{skip[h]} * v[j];
          for (std::size_t i = 0; i < shape.keys; ++i) found += d * s[place(h, i, j)] * k[i];
          const double delta = b * (shape.delta ? v[j] - found : v[j]);
          for (std::size_t i = 0; i < shape.keys; ++i) {
            double& value = s[place(h, i, j)];
            value = d * value + k[i] * delta;
            sum += value * q[i];
          }
          y.push_back(sum);
        }
      }
    }
    return y;
  }
};

TEST_P(Recurrent, LinearScansAreThoseOfFloat64) {
  for (const bool delta : {false, true}) {
    for (const std::size_t values : {1U, 5U, 16U, 31U, 32U}) {
      const Scan scan({.heads = 1, .groups = 1, .keys = 6, .values = values, .delta = delta}, 4);
      std::vector<double> states;
      std::vector<double> wanted = scan.wanted(states);
      std::vector<float> y(2 * values), state = scan.state;
      const std::size_t stride = scan.shape.channels();
      const float* const row = scan.channels.data();
      run(LinearScanArgs{.q = row + (delta ? 0 : values + 6),
                         .k = row + (delta ? 6 : values),
                         .v = row + (delta ? 12 : 0),
                         .stride = stride,
                         .y = y.data(),
                         .y_stride = values,
                         .decay = scan.decay.data(),
                         .strength = scan.strength.data(),
                         .scalar_stride = 1,
                         .tokens = 4,
                         .first_result = 2,
                         .keys = 6,
                         .values = values,
                         .state = state.data(),
                         .delta = delta,
                         .skip = scan.skip[0]});
      wanted.erase(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(2 * values));
      expect_near(y, wanted, std::to_string(values) + " values");
      expect_near(state, states, "state");
    }
  }
}

TEST_P(Recurrent, ChannelScansAreThoseOfFloat64) {
  constexpr std::size_t kTokens = 4, kStates = 5;
  for (const std::size_t channels : {1U, 15U, 16U, 37U}) {
    const std::vector<float> x = gaussian(kTokens * channels, 13), b = gaussian(kTokens * 2 * kStates, 14),
                             skip = gaussian(channels, 15), start = gaussian(kStates * channels, 16);
    std::vector<float> step = gaussian(kTokens * channels, 17), rates = gaussian(kStates * channels, 18);
    for (float& one : step) one = std::exp(one - 2);
    for (float& one : rates) one = -std::exp(one);
    std::vector<double> h(start.begin(), start.end()), wanted;
    for (std::size_t t = 0; t < kTokens; ++t) {
      for (std::size_t c = 0; c < channels; ++c) {
        const double input = x[t * channels + c], size = step[t * channels + c];
        double sum = double{skip[c]} * input;
        for (std::size_t n = 0; n < kStates; ++n) {
          double& state = h[n * channels + c];
          state = std::exp(size * rates[n * channels + c]) * state + size * input * b[t * 2 * kStates + n];
          sum += state * b[t * 2 * kStates + kStates + n];
        }
        wanted.push_back(sum);
      }
    }
    std::vector<float> y(wanted.size()), state = start;
    run(ChannelScanArgs{.x = x.data(),
                        .step = step.data(),
                        .y = y.data(),
                        .stride = channels,
                        .b = b.data(),
                        .r = b.data() + kStates,
                        .b_stride = 2 * kStates,
                        .tokens = kTokens,
                        .first_result = 0,
                        .channels = channels,
                        .states = kStates,
                        .rates = rates.data(),
                        .skip = skip.data(),
                        .state = state.data()});
    expect_near(y, wanted, std::to_string(channels) + " channels");
    expect_near(state, h, "state");
  }
}

// ---- the checked functions

const LinearScanShape kShapes[] = {
    {.heads = 6, .groups = 2, .keys = 8, .values = 40, .delta = true},
    {.heads = 6, .groups = 2, .keys = 8, .values = 40, .delta = true, .tiled = true},
    {.heads = 4, .groups = 1, .keys = 16, .values = 64},
};

std::vector<float> scan_in_pieces(const Scan& scan, std::size_t piece, std::vector<float>& state) {
  state = scan.state;
  std::vector<float> y;
  for (std::size_t first = 0; first < scan.tokens; first += piece) {
    const std::size_t count = std::min(piece, scan.tokens - first);
    const auto part = [&](const std::vector<float>& all, std::size_t cols) {
      return std::span(all).subspan(first * cols, count * cols);
    };
    std::vector<float> made(count * scan.shape.results());
    linear_scan(scan.shape, part(scan.channels, scan.shape.channels()), part(scan.decay, scan.shape.heads),
                part(scan.strength, scan.shape.heads), scan.skip, state, 0, made);
    y.insert(y.end(), made.begin(), made.end());
  }
  return y;
}

TEST(LinearScan, HeadsFindTheirKeysAndTilesTheirColumns) {
  for (const LinearScanShape& shape : kShapes) {
    const Scan scan(shape, 7);
    std::vector<double> states;
    const std::vector<double> wanted = scan.wanted(states);
    std::vector<float> state;
    expect_near(scan_in_pieces(scan, 7, state), wanted, shape.tiled ? "tiled" : "");
    expect_near(state, states, "state");
  }
}

TEST(LinearScan, GivesTheSameBitsHoweverTokensComeAndForAnyNumberOfThreads) {
  const int before = pool_threads();
  for (const LinearScanShape& shape : kShapes) {
    const Scan scan(shape, 29);
    std::vector<float> state, other_state;
    const std::vector<float> whole = scan_in_pieces(scan, 29, state);
    for (const int threads : {1, 3}) {
      set_pool_threads(threads);
      for (const std::size_t piece : {1U, 5U, 28U}) {
        EXPECT_EQ(scan_in_pieces(scan, piece, other_state), whole) << "in pieces of " << piece;
        EXPECT_EQ(other_state, state);
      }
    }
  }
  set_pool_threads(before);
}

TEST(ShortConv, GivesTheSameBitsHoweverTokensCome) {
  const Conv conv{.tokens = 11, .channels = 50, .kernel = 4};
  const auto in_pieces = [&](std::size_t piece) {
    std::vector<float> y(conv.x.size()), state = conv.state;
    for (std::size_t first = 0; first < conv.tokens; first += piece) {
      const std::size_t count = std::min(piece, conv.tokens - first) * conv.channels;
      short_conv(std::span(conv.x).subspan(first * conv.channels, count), conv.channels, conv.taps, conv.bias,
                 Activation::silu, state, 0, std::span(y).subspan(first * conv.channels, count));
    }
    return y;
  };
  const std::vector<float> whole = in_pieces(11);
  expect_near(whole, conv.wanted(true), "all at once");
  for (const std::size_t piece : {1U, 2U, 4U}) EXPECT_EQ(in_pieces(piece), whole);
}

TEST(LinearScan, NormalizesQueriesAndKeys) {
  const LinearScanShape shape{.heads = 2, .groups = 2, .keys = 16, .values = 3, .delta = true};
  std::vector<float> channels = gaussian(2 * shape.channels(), 19);
  const std::vector<float> before = channels;
  normalize_keys(shape, channels);
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const std::size_t at = i % shape.channels(), row = i - at;
    if (at >= 64) {
      EXPECT_EQ(channels[i], before[i]) << "values stay";
      continue;
    }
    double sum = 1e-6;
    for (std::size_t j = 0; j < 16; ++j) {
      const double value = before[row + at / 16 * 16 + j];
      sum += value * value;
    }
    EXPECT_NEAR(channels[i], before[i] / std::sqrt(sum) / (at < 32 ? 4 : 1), 1e-6);
  }
}

TEST(RecurrentSizes, RefusesSizesThatDoNotFit) {
  const LinearScanShape shape{.heads = 3, .groups = 2, .keys = 4, .values = 4};
  std::vector<float> some(256);
  EXPECT_THROW(linear_scan(shape, some, some, some, {}, some, 0, some), ShapeError);
  const std::span<float> all = some;
  EXPECT_THROW(short_conv(all.first(8), 4, all.first(36), {}, Activation::linear, all.first(32), 0, all.first(8)),
               ShapeError)
      << "nine taps";
  EXPECT_THROW(short_conv(all.first(8), 4, all.first(12), {}, Activation::linear, all.first(4), 0, all.first(8)),
               ShapeError)
      << "a state of one row";
  EXPECT_THROW(step_sizes(all.first(9), all.first(4), all.first(4), 0, 1, {}, {}), ShapeError);
}

}  // namespace
}  // namespace imago::kernels
