// What matrices see, against sums over what an observer is shown.

#include "precision/collect.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "imago/error.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "testing/random_values.h"
#include "testing/torch_models.h"

namespace imago::precision {
namespace {

std::vector<TokenId> some_ids(std::size_t count) {
  std::vector<TokenId> ids(count);
  for (std::size_t i = 0; i < count; ++i) ids[i] = static_cast<TokenId>(7 * i * i % 251);
  return ids;
}

/// All rows that each matrix multiplies, one after the other.
class Record final : public backend::InputObserver {
 public:
  explicit Record(const models::Traits& traits) : traits_(traits) {}
  void see(std::span<const models::Role> roles, std::size_t block, std::size_t expert, std::span<const float> x,
           std::size_t tokens) override {
    std::set<std::string> names;  // of fused projections one
    for (const models::Role role : roles) names.insert(models::matrix_name(traits_, role, block));
    for (const std::string& name : names) {
      auto& [columns, values] = seen[{name, expert}];
      columns = x.size() / tokens;
      values.insert(values.end(), x.begin(), x.end());
    }
  }
  std::map<std::pair<std::string, std::size_t>, std::pair<std::size_t, std::vector<float>>> seen;

 private:
  const models::Traits& traits_;
};

class CollectModels : public ::testing::TestWithParam<const char*> {};

TEST_P(CollectModels, MeansAreThoseOfWhatTheObserverSees) {
  const auto path = testing::find_torch_model(GetParam());
  if (!path) GTEST_SKIP() << testing::missing_torch_model(GetParam());
  const LanguageModel model = LanguageModel::load(*path);
  const std::vector<TokenId> ids = some_ids(70);
  guided::Calibration calibration;
  collect(model, ids, {.context = 16, .products = true}, calibration);
  EXPECT_EQ(calibration.windows, 4);
  EXPECT_EQ(calibration.context, 16);

  Record record(LanguageModelAccess::loaded(model).weights.traits);
  lm::ObservedRun run(model, 16);
  for (std::size_t i = 0; i < 4; ++i) run.run(std::span(ids).subspan(16 * i, 16), record);
  ASSERT_EQ(calibration.matrices.size(), record.seen.size());
  for (const auto& [key, matrix] : record.seen) {
    const auto& [columns, values] = matrix;
    const std::size_t rows = values.size() / columns;
    const guided::InputStatistics& got = calibration.require(key.first, key.second, columns);
    ASSERT_EQ(got.rows, rows) << key.first;
    ASSERT_EQ(got.products.size(), columns * columns);
    for (std::size_t i = 0; i < columns; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        double sum = 0, magnitude = 0;
        for (std::size_t row = 0; row < rows; ++row) {
          const double product =
              static_cast<double>(values[row * columns + i]) * static_cast<double>(values[row * columns + j]);
          sum += product;
          magnitude += std::fabs(product);
        }
        const double tolerance = 1e-6 * magnitude / static_cast<double>(rows) + 1e-30;
        ASSERT_NEAR(got.products[i * columns + j], sum / static_cast<double>(rows), tolerance) << key.first;
        if (i == j) {
          ASSERT_NEAR(got.second_moments[i], sum / static_cast<double>(rows), tolerance) << key.first;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CollectModels,
                         ::testing::Values("llama_tied_f32", "mixtral_moe_f32", "phi3_fused_f32", "gpt2_f32"),
                         [](const auto& model) { return std::string(model.param); });

TEST(Collect, MatricesThatReadTheSameShareTheirStatistics) {
  const auto path = testing::find_torch_model("llama_tied_f32");
  if (!path) GTEST_SKIP() << testing::missing_torch_model("llama_tied_f32");
  const LanguageModel model = LanguageModel::load(*path);
  guided::Calibration calibration;
  collect(model, some_ids(32), {.context = 16}, calibration);
  EXPECT_EQ(calibration.find("blk.0.attn_q.weight"), calibration.find("blk.0.attn_v.weight"));
  EXPECT_EQ(calibration.find("blk.1.ffn_gate.weight"), calibration.find("blk.1.ffn_up.weight"));
  EXPECT_NE(calibration.find("blk.1.ffn_down.weight"), nullptr);
  EXPECT_NE(calibration.find("token_embd.weight"), nullptr);  // it gives the logits
  EXPECT_TRUE(calibration.find("blk.0.attn_q.weight")->products.empty());
}

TEST(Collect, InPartsItIsTheSame) {
  const auto path = testing::find_torch_model("llama_tied_f32");
  if (!path) GTEST_SKIP() << testing::missing_torch_model("llama_tied_f32");
  const LanguageModel model = LanguageModel::load(*path);
  const std::vector<TokenId> ids = some_ids(64);
  guided::Calibration whole, parts;
  collect(model, ids, {.context = 16, .products = true}, whole);
  collect(model, std::span(ids).first(48), {.context = 16, .products = true}, parts);
  const guided::Calibration before = parts;
  const float moment = before.find("blk.0.ffn_down.weight")->second_moments[0];
  collect(model, std::span(ids).last(16), {.context = 16, .products = true}, parts);
  EXPECT_EQ(parts.windows, 4);
  EXPECT_EQ(before.find("blk.0.ffn_down.weight")->second_moments[0], moment);  // copies stay what they were
  for (const auto& [key, statistics] : whole.matrices) {
    const guided::InputStatistics& got = parts.require(key.first, key.second, statistics->second_moments.size());
    EXPECT_EQ(got.rows, statistics->rows);
    for (std::size_t i = 0; i < got.second_moments.size(); ++i) {
      EXPECT_NEAR(got.second_moments[i], statistics->second_moments[i], 1e-6f * statistics->second_moments[i]);
    }
  }
}

TEST(Collect, ATextThatDoesNotFillAWindowIsRefused) {
  const auto path = testing::find_torch_model("llama_tied_f32");
  if (!path) GTEST_SKIP() << testing::missing_torch_model("llama_tied_f32");
  const LanguageModel model = LanguageModel::load(*path);
  guided::Calibration calibration;
  EXPECT_THROW(collect(model, some_ids(15), {.context = 16}, calibration), UsageError);
}

TEST(InputSums, DoNotDependOnThreadsAndCoverOddPanels) {
  constexpr std::size_t kRows = 9, kColumns = 301;
  const std::vector<float> x = testing::random_values(kRows * kColumns, 5);
  const int threads = pool_threads();
  std::vector<float> first;
  for (const int count : {1, 2, 3}) {
    set_pool_threads(count);
    InputSums sums(kColumns, true);
    sums.add(x, kRows);
    const guided::InputStatistics got = sums.statistics();
    if (first.empty()) first = got.products;
    EXPECT_EQ(got.products, first);
  }
  set_pool_threads(threads);
  for (const auto& [i, j] : {std::pair<std::size_t, std::size_t>{0, 300}, {300, 0}, {128, 127}, {255, 256}}) {
    double sum = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      sum += static_cast<double>(x[row * kColumns + i]) * static_cast<double>(x[row * kColumns + j]);
    }
    EXPECT_NEAR(first[i * kColumns + j], sum / kRows, 1e-5);
  }
}

TEST(InputSums, KnowValuesThatAreNotFinite) {
  InputSums sums(3, false);
  sums.add(std::vector<float>{1, 2, 3}, 1);
  EXPECT_TRUE(sums.is_finite());
  sums.add(std::vector<float>{1, std::numeric_limits<float>::infinity(), 3}, 1);
  EXPECT_FALSE(sums.is_finite());
}

}  // namespace
}  // namespace imago::precision
