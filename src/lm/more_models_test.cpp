// Every way through the cache against transformers: one small model of each architecture that is not in decoder_test.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "imago/lm.h"
#include "testing/paged_sequences.h"
#include "testing/reference.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

constexpr double kTolerance = 2e-3;
constexpr SequenceOptions kInFloats = {.context = 64, .cache = CacheKind::float32};

class MoreModels : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string file = std::string("torch/more/") + GetParam() + "/model.safetensors";
    const std::optional<std::string> found = testing::find_reference(file);
    if (!found) GTEST_SKIP() << testing::missing_reference(file);
    const std::string folder = std::filesystem::path(*found).parent_path().string();
    std::ifstream text(folder + "/reference.json");
    reference_ = nlohmann::json::parse(text);
    ids_ = reference_.at("ids").get<std::vector<TokenId>>();
    model_.emplace(LanguageModel::load(folder, {.fast = false}));
    ASSERT_EQ(model_->vocabulary(), reference_.at("logits").at(0).size());
  }

  /// The largest difference of logits after some of the tokens from the reference.
  double off(std::size_t first, std::span<const float> logits) const {
    double worst = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const auto& row = reference_.at("logits").at(first + i / model_->vocabulary());
      const double wanted = row.at(i % model_->vocabulary()).get<double>();
      const double difference = std::fabs(static_cast<double>(logits[i]) - wanted);
      if (!(difference <= worst)) worst = difference;  // NaN too
    }
    return worst;
  }

  /// Appends tokens `first` … `last` in pieces of `piece`; the largest difference of all their logits.
  double append(Sequence& sequence, std::size_t first, std::size_t last, std::size_t piece) const {
    double worst = 0;
    for (std::size_t i = first; i < last; i += piece) {
      const std::size_t count = std::min(piece, last - i);
      std::vector<float> logits(count * model_->vocabulary());
      sequence.append(std::span(ids_).subspan(i, count), logits);
      worst = std::max(worst, off(i, logits));
    }
    return worst;
  }

  nlohmann::json reference_;
  std::vector<TokenId> ids_;
  std::optional<LanguageModel> model_;
};

TEST_P(MoreModels, LogitsAreThoseOfTransformersHoweverTokensComeIn) {
  for (const std::size_t piece : {ids_.size(), std::size_t{1}, std::size_t{7}}) {
    Sequence sequence(*model_, kInFloats);
    EXPECT_LE(append(sequence, 0, ids_.size(), piece), kTolerance) << "in pieces of " << piece;
  }
}

TEST_P(MoreModels, LogitsAreThoseOfTransformersAfterSavingAndRestoring) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "saved";
  {
    Sequence sequence(*model_, kInFloats);
    append(sequence, 0, 13, 13);
    sequence.save(path);
  }
  Sequence sequence(*model_, kInFloats);
  sequence.append(std::span(ids_).last(5));
  sequence.restore(path);
  EXPECT_LE(append(sequence, 13, ids_.size(), 4), kTolerance);
}

TEST_P(MoreModels, LogitsAreThoseOfTransformersBesideAnotherSequence) {
  testing::PagedSequences sequences(*model_, CacheKind::float32, 2, 1);
  const std::vector<TokenId> other(ids_.rbegin(), ids_.rend());
  const auto part = [](const std::vector<TokenId>& ids, std::size_t first, std::size_t count) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector<TokenId>(at, at + static_cast<std::ptrdiff_t>(count));
  };
  const auto run = [&](std::size_t other_first, std::size_t other_count, std::size_t first, std::size_t count) {
    const auto logits = sequences.run({{.sequence = 1, .ids = part(other, other_first, other_count)},
                                       {.sequence = 0, .ids = part(ids_, first, count)}});
    EXPECT_LE(off(first + count - 1, logits.at(1)), kTolerance) << "after " << first + count;
  };
  run(0, 3, 0, 9);
  run(3, 8, 9, 1);
  for (std::size_t i = 10; i < 16; ++i) run(i + 1, 1, i, 1);
  run(17, 1, 16, ids_.size() - 16);
}

TEST_P(MoreModels, GreedyTokensAreThoseOfTransformers) {
  const auto all = reference_.at("greedy").get<std::vector<TokenId>>();
  Sequence sequence(*model_, kInFloats);
  std::span<const float> logits = sequence.append(ids_);
  std::vector<TokenId> made = ids_;
  while (made.size() < all.size()) {
    made.push_back(static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    logits = sequence.append(std::span(made).last(1));
  }
  EXPECT_EQ(made, all);
}

INSTANTIATE_TEST_SUITE_P(All, MoreModels, ::testing::ValuesIn(testing::kMoreModels),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace imago
