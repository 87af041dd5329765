// What types cost, against models that were loaded with that one change.

#include "precision/sensitivity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

#include "imago/codec.h"
#include "lm/language_model_state.h"
#include "lm/matrix_encoder.h"
#include "lm/scored_windows.h"
#include "precision/collect.h"
#include "precision/planner.h"
#include "testing/byte_model.h"
#include "testing/one_thread.h"
#include "testing/torch_models.h"

namespace imago::precision {
namespace {

const testing::OneThread one_thread;  // the models are small
constexpr std::size_t kContext = 32;
const std::vector<Format> kTypes = {BlockFormat::q4_0, BlockFormat::q5_0, BlockFormat::q8_0};

class Sensitivity : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = testing::ByteModel::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    text_ = testing::ByteModel::text(6 * kContext);
  }
  LanguageModel load() const { return LanguageModel::load(files_->path(), {.fast = false}); }
  std::vector<TokenId> ids(const LanguageModel& model) const {
    return lm::window_tokens(text_, model.require_tokenizer(), kContext);
  }
  /// The divergence of a model that was loaded with one tensor in another type.
  double loaded_with(const LanguageModel& reference, const DecoderMatrix& matrix, Format type) const {
    const LanguageModel changed =
        lm::load_encoded(files_->path(), {.fast = false},
                         [&](const models::MatrixKey& key, std::span<const float> weights, std::size_t, std::size_t) {
                           if (std::ranges::find(matrix.parts, key) == matrix.parts.end())
                             return std::optional<lm::EncodedWeights>();
                           lm::EncodedWeights encoded{
                               .format = type, .packed = host_device()->allocate(packed_bytes(type, weights.size()))};
                           encode(type.block(), weights, encoded.packed.host());
                           return std::optional(std::move(encoded));
                         });
    return measure_divergence(reference, changed, text_, {.context = kContext}).mean;
  }

  std::optional<testing::ByteModel> files_;
  std::string text_;
};

TEST_F(Sensitivity, SomeRowsHaveTheErrorOfTheWholeMatrix) {
  const LanguageModel model = load();
  const DecoderMatrices matrices(files_->path());
  guided::Calibration calibration;
  collect(model, ids(model), {.context = kContext, .products = true}, calibration);
  for (const Rounding rounding : {Rounding::nearest, Rounding::compensated}) {
    const MatrixTrials trials(matrices, calibration, rounding);
    for (const DecoderMatrix& matrix : matrices.all()) {
      for (const Format type : kTypes) {
        const double whole = trials.encode(matrix, type).output_error;
        EXPECT_NEAR(trials.output_error(matrix, type), whole, 1e-3 * whole) << matrix.name << " " << type.name();
      }
    }
  }
}

TEST_F(Sensitivity, MeasuredCostsAreThoseOfModelsLoadedThatWay) {
  const LanguageModel reference = load();
  LanguageModel model = load();
  OutputProbe probe(model, ids(model), {.context = kContext});
  const DecoderMatrices matrices(files_->path());
  const guided::Calibration nothing;
  const MatrixTrials trials(matrices, nothing, Rounding::nearest);
  const std::vector<Format> measured = {BlockFormat::q4_0, BlockFormat::q8_0};
  const auto costs = measure_costs(model, matrices, trials, probe, kTypes, measured, {});
  EXPECT_EQ(probe.measure(0).divergence, 0) << "the model is restored";
  ASSERT_EQ(costs.size(), matrices.all().size());
  // The embedding, used twice; a late and an early matrix.
  for (const std::size_t i : {std::size_t{0}, std::size_t{1}, costs.size() - 1}) {
    for (const TypeOption& option : costs[i]) {
      const double wanted = loaded_with(reference, matrices.all()[i], option.type);
      const double tolerance = option.measured ? 1e-3 * wanted + 1e-8 : 0.35 * wanted;
      EXPECT_NEAR(option.cost, wanted, tolerance) << matrices.all()[i].name << ' ' << option.type.name();
    }
  }
}

TEST(OutputProbe, BlocksThatReadMoreThanTheStreamRunFromTheStart) {
  const auto folder = testing::find_torch_model("gemma4_bf16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("gemma4_bf16");
  const LanguageModel model = LanguageModel::load(*folder, {.fast = false});
  std::vector<TokenId> ids(2 * kContext);  // two windows that differ
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i * i % 251);
  OutputProbe probe(model, ids, {.context = kContext});
  for (const std::size_t first : {std::size_t{0}, std::size_t{3}, std::size_t{5}}) {
    EXPECT_EQ(probe.measure(first).divergence, 0) << "from block " << first;
  }
}

TEST_F(Sensitivity, LateBlocksNeedNotRunTheEarlyOnes) {
  LanguageModel model = load();
  OutputProbe probe(model, ids(model), {.context = kContext});
  const DecoderMatrices matrices(files_->path());
  const guided::Calibration nothing;
  const MatrixTrials trials(matrices, nothing, Rounding::nearest);
  const DecoderMatrix& last = matrices.all().back();
  ASSERT_GT(last.first_block, 0u);
  lm::MatrixSwap swap(model);
  put(swap, trials.encode(last, BlockFormat::q4_0));
  const double from_there = probe.measure(last.first_block).divergence;
  EXPECT_GT(from_there, 0);
  EXPECT_EQ(from_there, probe.measure(0).divergence);
  // Inputs of an early change are remembered after rebase.
  put(swap, trials.encode(matrices.all()[1], BlockFormat::q4_0));
  probe.rebase();
  EXPECT_EQ(probe.measure(last.first_block).divergence, probe.measure(0).divergence);
}

TEST(EstimateUnmeasured, FollowsThePowerOfWhatWasMeasured) {
  std::vector<TypeOption> costs(5);
  const double errors[] = {1e-4, 1e-3, 1e-2, 1e-1, 1};
  for (std::size_t i = 0; i < costs.size(); ++i) costs[i].output_error = errors[i];
  costs[1].measured = costs[3].measured = true;
  costs[1].cost = 2e-3;
  costs[3].cost = 2e-3 * std::pow(100, 1.2);
  estimate_unmeasured(costs);
  EXPECT_NEAR(costs[0].cost, 2e-4, 1e-9) << "small errors in proportion";
  EXPECT_NEAR(costs[2].cost, 2e-3 * std::pow(10, 1.2), 1e-9);
  EXPECT_NEAR(costs[4].cost, 2e-3 * std::pow(1000, 1.2), 1e-6);
}

TEST(EstimateUnmeasured, OneMeasurementAndNoErrorAreEnough) {
  std::vector<TypeOption> costs(3);
  costs[0].output_error = 2;
  costs[1].output_error = 1;
  costs[1].measured = true;
  costs[1].cost = 0.25;
  estimate_unmeasured(costs);
  EXPECT_DOUBLE_EQ(costs[0].cost, 0.5);
  EXPECT_EQ(costs[2].cost, 0) << "no error, no cost";
}

TEST(TypesToMeasure, AreTheNearestAndThoseABitAboveAndBelow) {
  const std::vector<Format> types = {BlockFormat::q2_k, BlockFormat::q3_k, BlockFormat::q4_k, BlockFormat::q5_k};
  EXPECT_EQ(types_to_measure(types, 4.5),
            (std::vector<Format>{BlockFormat::q3_k, BlockFormat::q4_k, BlockFormat::q5_k}));
  EXPECT_EQ(types_to_measure(types, 9), (std::vector<Format>{BlockFormat::q5_k}));
}

TEST(SplitWindows, JudgesServeNoOtherPurpose) {
  std::vector<TokenId> ids(100 * 8);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<TokenId>(i / 8);
  for (const std::size_t windows : {2u, 3u, 7u, 30u, 100u}) {
    const auto split = split_windows(std::span(ids).first(windows * 8), 8, 6, 20);
    const std::set<TokenId> judge(split.judge.begin(), split.judge.end());
    EXPECT_FALSE(split.measure.empty());
    EXPECT_FALSE(judge.empty());
    EXPECT_LE(split.calibrate.size(), 20u * 8);
    for (const auto* others : {&split.measure, &split.calibrate}) {
      for (const TokenId id : *others) EXPECT_FALSE(judge.contains(id)) << windows;
    }
  }
  const auto usual = split_windows(ids, 8, 6, 20);
  EXPECT_EQ(usual.measure.size(), 6u * 8);
  EXPECT_EQ(usual.judge.size(), 12u * 8);
  EXPECT_EQ(usual.calibrate.size(), 20u * 8);
}

}  // namespace
}  // namespace imago::precision
