// Models that make embeddings, against transformers.

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "imago/error.h"
#include "imago/lm.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

constexpr double kTolerance = 2e-3;

class Encoders : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::optional<std::string> folder = testing::find_torch_model(GetParam());
    if (!folder) GTEST_SKIP() << testing::missing_torch_model(GetParam());
    std::ifstream text(*folder + "/reference.json");
    reference_ = nlohmann::json::parse(text);
    ids_ = reference_.at("ids").get<std::vector<TokenId>>();
    model_.emplace(LanguageModel::load(*folder, {.fast = false}));
  }

  nlohmann::json reference_;
  std::vector<TokenId> ids_;
  std::optional<LanguageModel> model_;
};

TEST_P(Encoders, HiddenStatesAreThoseOfTransformers) {
  EXPECT_FALSE(model_->generates());
  const std::vector<float> hidden = hidden_states(*model_, ids_);
  const std::size_t width = model_->embedding_width();
  ASSERT_EQ(hidden.size(), ids_.size() * width);
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const double wanted = reference_.at("hidden").at(i / width).at(i % width).get<double>();
    ASSERT_NEAR(static_cast<double>(hidden[i]), wanted, kTolerance) << "token " << i / width << ", " << i % width;
  }
}

TEST_P(Encoders, GenerateNothing) {
  EXPECT_THROW(Sequence(*model_, {}), UnsupportedError);
  EXPECT_THROW(hidden_states(*model_, {}), UsageError);
}

INSTANTIATE_TEST_SUITE_P(All, Encoders, ::testing::ValuesIn(testing::kEmbeddingModels),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace imago
