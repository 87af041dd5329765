// Embeddings and scores from the engine: what a text gets alone, whatever is beside it, and what its rows say.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <memory>
#include <vector>

#include "imago/engine.h"
#include "imago/error.h"
#include "testing/cross_encoder.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using testing::CrossEncoder;
using Ids = std::vector<TokenId>;

Ids some_ids(std::size_t count, std::size_t seed = 1) {
  Ids ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>((seed * 37 + i * 101 + i * i) % 256));
  return ids;
}

std::shared_ptr<LanguageModel> load_model(const std::string& path) {
  return std::make_shared<LanguageModel>(LanguageModel::load(path, {.fast = false}));
}

std::vector<std::vector<float>> one_by_one(Engine& engine, const std::vector<Ids>& texts, const EmbedOptions& options) {
  std::vector<std::vector<float>> vectors;
  for (const Ids& ids : texts) vectors.push_back(engine.embed({&ids, 1}, options).front());
  return vectors;
}

void expect_rows(const std::vector<std::vector<float>>& got, const std::vector<float>& hidden, std::size_t row) {
  for (std::size_t i = 0; i < got.front().size(); ++i) {
    EXPECT_NEAR(got.front()[i], hidden[row * got.front().size() + i], 1e-5) << i;
  }
}

TEST(EngineEmbeddings, TextsTogetherAreAsAloneForDecoders) {
  const auto folder = testing::find_torch_model("llama3_rope_scaling_f16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("llama3_rope_scaling_f16");
  Engine engine(load_model(*folder), {.context = 200, .parallel = 2, .prompt_tokens = 48});
  const std::vector<Ids> texts = {some_ids(5), some_ids(30, 2), some_ids(100, 3), some_ids(1, 4), some_ids(20, 5)};
  for (const Pooling pooling : {Pooling::mean, Pooling::cls, Pooling::last}) {
    EXPECT_EQ(engine.embed(texts, {.pooling = pooling}), one_by_one(engine, texts, {.pooling = pooling}));
  }
  EXPECT_EQ(engine.state().pages_used, 0u);
  EXPECT_TRUE(engine.embed(std::vector<Ids>()).empty());
}

class EncoderEmbeddings : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = CrossEncoder::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    model_ = load_model(files_->path());
  }
  std::optional<CrossEncoder> files_;
  std::shared_ptr<LanguageModel> model_;
};

TEST_F(EncoderEmbeddings, TextsTogetherAreAsAlone) {
  // A text of more tokens than a step has is seen as a whole nevertheless.
  Engine engine(model_, {.parallel = 2, .prompt_tokens = 24});
  const std::vector<Ids> texts = {some_ids(5), some_ids(17, 2), some_ids(100, 3), some_ids(1, 4), some_ids(20, 5)};
  const std::vector<std::vector<float>> vectors = engine.embed(texts);
  EXPECT_EQ(vectors, one_by_one(engine, texts, {}));
  EXPECT_EQ(engine.state().steps, 3u + 5u) << "two of the five texts share a step, and two others";
  EXPECT_EQ(engine.state().pages_used, 0u);
}

TEST_F(EncoderEmbeddings, PoolingChoosesRows) {
  Engine engine(model_, {.cache = CacheKind::float32, .parallel = 1});
  const Ids ids = some_ids(40);
  const std::vector<float> hidden = hidden_states(*model_, ids);
  EXPECT_EQ(model_->pooling(), Pooling::cls) << "scores are made of the first token";
  expect_rows(engine.embed({&ids, 1}), hidden, 0);
  expect_rows(engine.embed({&ids, 1}, {.pooling = Pooling::last}), hidden, 39);
  std::vector<float> mean(64);
  for (std::size_t i = 0; i < hidden.size(); ++i) mean[i % 64] += hidden[i] / 40;
  expect_rows(engine.embed({&ids, 1}, {.pooling = Pooling::mean}), mean, 0);
  double squares = 0;
  const std::vector<std::vector<float>> unit = engine.embed({&ids, 1}, {.normalize = true});
  for (const float value : unit.front()) {
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(squares, 1, 1e-5);
}

TEST_F(EncoderEmbeddings, AnErrorFromProgressEndsTheWork) {
  Engine engine(model_, {.parallel = 1, .prompt_tokens = 10});
  const std::vector<Ids> texts = {some_ids(9), some_ids(9, 2), some_ids(9, 3)};
  const auto stop = [](std::size_t done, std::size_t all) {
    EXPECT_EQ(all, 3u);
    if (done == 1) throw std::runtime_error("gone");
  };
  EXPECT_THROW(engine.embed(texts, {.progress = stop}), std::runtime_error);
  EXPECT_EQ(engine.state().steps, 1u);
  EXPECT_EQ(engine.state().pages_used, 0u);
  EXPECT_EQ(engine.embed(texts).size(), 3u);
}

TEST_F(EncoderEmbeddings, NoTextIsGeneratedAndNoneIsTooLong) {
  Engine engine(model_, {.parallel = 1});
  EXPECT_THROW(engine.submit({.prompt = some_ids(3)}), UnsupportedError);
  EXPECT_THROW(engine.embed(some_ids(129)), ContextError) << "there are 128 positions";
  EXPECT_EQ(engine.embed(some_ids(128)).size(), 64u);
}

TEST_F(EncoderEmbeddings, AScoreIsWhatPoolerAndClassifierMakeOfTheFirstRow) {
  const Ids ids = some_ids(20);
  const std::vector<float> hidden = hidden_states(*model_, ids);
  const Tensor<float>&dense = files_->tensor("pooler.dense.weight"), &dense_bias = files_->tensor("pooler.dense.bias"),
        &classifier = files_->tensor("classifier.weight");
  double wanted = 0.25;
  for (std::size_t r = 0; r < 64; ++r) {
    double sum = static_cast<double>(dense_bias[r]);
    for (std::size_t i = 0; i < 64; ++i) sum += static_cast<double>(dense[r * 64 + i]) * static_cast<double>(hidden[i]);
    wanted += static_cast<double>(classifier[r]) * std::tanh(sum);
  }
  Engine engine(model_, {.cache = CacheKind::float32, .parallel = 1});
  const std::vector<TextPair> pairs = {{ids, ids.size()}, {some_ids(9, 2), 9}, {ids, ids.size()}};
  const std::vector<float> scores = engine.score(pairs);
  ASSERT_EQ(scores.size(), 3u);
  EXPECT_NEAR(scores[0], wanted, 1e-4);
  EXPECT_EQ(scores[2], scores[0]);
  EXPECT_NE(scores[1], scores[0]);
}

// What is added to the embeddings of the second text can be added to its positions instead.
TEST_F(EncoderEmbeddings, TheSecondTextHasATypeOfItsOwn) {
  constexpr std::size_t kSecond = 7;
  const TextPair pair{some_ids(20), kSecond};
  const float wanted = Engine(model_, {.cache = CacheKind::float32, .parallel = 1}).score({&pair, 1}).front();
  const Tensor<float>& types = files_->tensor("embeddings.token_type_embeddings.weight");
  Tensor<float>& positions = files_->tensor("embeddings.position_embeddings.weight");
  for (std::size_t p = kSecond; p < 20; ++p) {
    for (std::size_t i = 0; i < 64; ++i) positions[p * 64 + i] += types[64 + i] - types[i];
  }
  files_->save();
  const auto other = load_model(files_->path());
  const TextPair single{pair.ids, pair.ids.size()};
  Engine engine(other, {.cache = CacheKind::float32, .parallel = 1});
  EXPECT_NEAR(engine.score({&single, 1}).front(), wanted, 1e-4);
  EXPECT_GT(std::fabs(engine.score({&pair, 1}).front() - wanted), 1e-3);
}

TEST_F(EncoderEmbeddings, OnlyCrossEncodersScore) {
  files_->config()["id2label"] = {{"0", "no"}, {"1", "yes"}};
  Tensor<float> two(Shape{2, 64}), biases(Shape{2});
  files_->tensor("classifier.weight") = std::move(two);
  files_->tensor("classifier.bias") = std::move(biases);
  files_->save();
  const TextPair pair{some_ids(3), 2};
  Engine classifier(load_model(files_->path()), {.parallel = 1});
  EXPECT_THROW(classifier.score({&pair, 1}), UnsupportedError);
  files_->config()["architectures"] = {"BertModel"};
  files_->save();
  Engine plain(load_model(files_->path()), {.parallel = 1});
  EXPECT_THROW(plain.score({&pair, 1}), UnsupportedError);
}

TEST_F(EncoderEmbeddings, PairsAreEncodedWithMarksAroundBoth) {
  const Tokenizer& tokenizer = model_->require_tokenizer();
  const auto id = [&](const char* text) { return tokenizer.encode(text).front(); };
  EXPECT_EQ(encode_whole(tokenizer, "Ship?"), (Ids{1, id("ship"), id("?"), 2}));
  const TextPair pair = encode_pair(tokenizer, "Ship?", "the");
  EXPECT_EQ(pair.ids, (Ids{1, id("ship"), id("?"), 2, id("the"), 2}));
  EXPECT_EQ(pair.second, 4u);
}

}  // namespace
}  // namespace imago
