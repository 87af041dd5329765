// The table, and the checked functions over it: sizes, splitting over threads, the table of rotations.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "kernels/ops_table.h"
#include "testing/random_values.h"

namespace imago::kernels {

namespace {

using testing::gaussian;

template <class Args>
void expect_rows(const std::string& operation) {
  const auto rows = all_ops<Args>();
  ASSERT_FALSE(rows.empty());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(rows[i].name.starts_with(operation + "/")) << rows[i].name;
    EXPECT_EQ(&choose_op<Args>(rows[i].needs), &rows[i]) << "no row before it needs less";
  }
  EXPECT_EQ(rows.back().name, operation + "/ref");
  EXPECT_EQ(rows.back().needs, kNoFeatures);
}

TEST(OpsTable, RowsStandBestFirstAndRefLast) {
  expect_rows<RmsNormArgs>("rms_norm");
  expect_rows<LayerNormArgs>("layer_norm");
  expect_rows<SoftmaxArgs>("softmax");
  expect_rows<RopeArgs>("rope");
  expect_rows<ActivateArgs>("activate");
  expect_rows<AddScaledArgs>("add_scaled");
  expect_rows<ScaleArgs>("scale");
  expect_rows<QuantizeArgs>("quantize_tokens");
  expect_rows<AttentionArgs>("attention");
  expect_rows<ShortConvArgs>("short_conv");
  expect_rows<StepSizeArgs>("step_size");
  expect_rows<LinearScanArgs>("linear_scan");
  expect_rows<ChannelScanArgs>("channel_scan");
  expect_rows<UpdateArgs>("update");
  expect_rows<SquaresArgs>("squares");
}

/// Restores the pool.
class Threads {
 public:
  explicit Threads(int count) { set_pool_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_pool_threads(before_); }

 private:
  int before_ = pool_threads();
};

/// Everything, one after the other, on rows long enough to be split.
std::vector<float> all_operations() {
  constexpr std::size_t kCols = 1000, kRows = 201;
  const std::vector<float> weight = gaussian(kCols, 1), bias = gaussian(kCols, 2);
  std::vector<float> x = gaussian(kCols * kRows, 3), y(x.size());
  rms_norm(x, weight, 1e-6f, y, 1);
  layer_norm(y, weight, bias, 1e-5f, y);
  rope(y, 10, 100, RopeTable({.rotary = 50}, 300), 99, RopePairs::adjacent);
  activate(Activation::gelu, y, y);
  activate_mul(Activation::silu, x, y, y);
  add(x, y);
  add_scaled(x, 0.25f, y);
  scale(y, 0.1f);
  softmax(y, kCols, 0.5f, 30);
  return y;
}

TEST(OpsApi, ResultsDoNotDependOnThreads) {
  const std::vector<float> one = (Threads(1), all_operations());
  for (const int threads : {2, 3, 5}) {
    const Threads limit(threads);
    EXPECT_EQ(all_operations(), one) << threads << " threads";
  }
}

TEST(OpsApi, RopeTableIsComputedInDouble) {
  const RopeTable table(
      {.rotary = 8, .base = 10000, .frequency_factors = {1, 0.5, 0.25, 0.125}, .attention_factor = 1.5}, 100'001);
  for (const std::size_t position : {0, 1, 4097, 100'000}) {
    const std::span<const float> row = table.at(position);
    ASSERT_EQ(row.size(), 8u);
    for (std::size_t j = 0; j < 4; ++j) {
      const double exponent = static_cast<double>(j);
      const double angle = static_cast<double>(position) * std::pow(10, -exponent) * std::pow(0.5, exponent);
      EXPECT_NEAR(row[j], 1.5 * std::cos(angle), 2e-7) << position;
      EXPECT_NEAR(row[4 + j], 1.5 * std::sin(angle), 2e-7) << position;
    }
  }
}

TEST(OpsApi, RopeGivesEachTokenItsPosition) {
  const RopeTable table({.rotary = 4}, 10);
  const std::vector<float> x = gaussian(3 * 2 * 4, 4);
  std::vector<float> together = x;
  rope(together, 2, 4, table, 7, RopePairs::halves);
  for (std::size_t token = 0; token < 3; ++token) {
    std::vector<float> alone(x.begin() + static_cast<std::ptrdiff_t>(token * 8),
                             x.begin() + static_cast<std::ptrdiff_t>(token * 8 + 8));
    rope(alone, 2, 4, table, 7 + token, RopePairs::halves);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(together[token * 8 + i], alone[i]);
  }
}

TEST(OpsApi, RefusesWhatDoesNotFit) {
  std::vector<float> x(12), y(12), seven(7), none;
  EXPECT_THROW(rms_norm(x, seven, 0, y), ShapeError);
  EXPECT_THROW(rms_norm(x, none, 0, y), ShapeError);
  EXPECT_THROW(rms_norm(x, y, 0, seven), ShapeError);
  EXPECT_THROW(layer_norm(x, y, seven, 0, y), ShapeError);
  EXPECT_THROW(softmax(x, 5), ShapeError);
  EXPECT_THROW(softmax(x, 0), ShapeError);
  EXPECT_THROW(softmax(x, 12, 0), UsageError);
  EXPECT_THROW(softmax(x, 12, 1, -1), UsageError);
  EXPECT_THROW(activate(Activation::relu, x, seven), ShapeError);
  EXPECT_THROW(activate_mul(Activation::relu, x, seven, y), ShapeError);
  EXPECT_THROW(add(x, seven), ShapeError);
}

TEST(OpsApi, RopeRefusesWhatDoesNotFit) {
  const RopeTable table({.rotary = 4}, 10);
  std::vector<float> x(12);
  EXPECT_NO_THROW(rope(x, 1, 4, table, 7, RopePairs::halves));
  EXPECT_THROW(rope(x, 1, 4, table, 8, RopePairs::halves), UsageError);  // the last of three is past the table
  EXPECT_THROW(rope(x, 6, 2, table, 0, RopePairs::halves), ShapeError);
  EXPECT_THROW(rope(x, 1, 5, table, 0, RopePairs::halves), ShapeError);
  EXPECT_THROW(RopeTable({.rotary = 5}, 1), UsageError);
  EXPECT_THROW(RopeTable({.rotary = 4, .base = 0}, 1), UsageError);
  EXPECT_THROW(RopeTable({.rotary = 4, .base = 10, .frequency_factors = {1}}, 1), UsageError);
}

TEST(OpsApi, EmptyInputIsNoWork) {
  std::vector<float> none, weight(4);
  EXPECT_NO_THROW(rms_norm(none, weight, 0, none));
  EXPECT_NO_THROW(softmax(none, 4));
  EXPECT_NO_THROW(add(none, none));
}

}  // namespace

}  // namespace imago::kernels
