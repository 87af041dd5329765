// The forward pass against transformers: small models of every architecture, and a trained one.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "imago/error.h"
#include "imago/lm.h"
#include "imago/numeric.h"
#include "testing/on_one_thread.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file);
}

std::vector<TokenId> ids_of(const json& list) { return list.get<std::vector<TokenId>>(); }

TokenId most_likely(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

/// The fastest kernels on one thread: these models are too small for two.

/// The tokens that follow `prompt` when the most likely one is always taken.
std::vector<TokenId> greedy(const LanguageModel& model, const std::vector<TokenId>& prompt, std::size_t count) {
  Sequence sequence(model, {.context = prompt.size() + count, .cache = CacheKind::float32});
  std::vector<TokenId> made = {most_likely(sequence.append(prompt))};
  while (made.size() < count) made.push_back(most_likely(sequence.append(std::span(made).last(1))));
  return made;
}

class TorchModel : public ::testing::TestWithParam<const char*> {};

TEST_P(TorchModel, LogitsAndContinuationAreThoseOfTransformers) {
  const std::string name = GetParam();
  const auto folder = testing::find_torch_model(name);
  if (!folder) GTEST_SKIP() << testing::missing_torch_model(name);
  const json reference = read_json(*folder + "/reference.json");
  const bool is_16_bit = name.ends_with("16");
  const double tolerance = is_16_bit ? 2e-2 : 2e-3;

  const LanguageModel model = LanguageModel::load(*folder, {.fast = false});
  EXPECT_EQ(model.vocabulary(), reference.at("logits").at(0).size());
  const std::vector<TokenId> ids = ids_of(reference.at("ids"));
  Sequence sequence(model, {.context = ids.size(), .cache = CacheKind::float32});
  std::vector<float> logits(ids.size() * model.vocabulary());
  sequence.append(ids, logits);
  double worst = 0;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    for (std::size_t i = 0; i < model.vocabulary(); ++i) {
      const double wanted = reference.at("logits").at(t).at(i).get<double>();
      worst = std::max(worst, std::fabs(static_cast<double>(logits[t * model.vocabulary() + i]) - wanted));
    }
  }
  EXPECT_LE(worst, tolerance);
  RecordProperty("largest_difference", std::to_string(worst));
  const std::vector<TokenId> all = ids_of(reference.at("greedy"));
  const std::vector<TokenId> wanted(all.begin() + static_cast<std::ptrdiff_t>(ids.size()), all.end());
  EXPECT_EQ(greedy(model, ids, wanted.size()), wanted);
}

INSTANTIATE_TEST_SUITE_P(All, TorchModel, ::testing::ValuesIn(testing::kTorchModels),
                         [](const auto& one) { return std::string(one.param); });

/// The trained model, if it is here.
class TrainedModel : public ::testing::Test {
 protected:
  static std::string folder() { return (testing::reference_folder() / "lm").string(); }
  void SetUp() override {
    if (!std::filesystem::exists(folder())) GTEST_SKIP() << testing::missing_reference("lm");
    if (std::getenv("IMAGO_KERNELS") != nullptr) GTEST_SKIP() << "plain kernels have proved themselves on small models";
  }
};

TEST_F(TrainedModel, LogitsAfter512TokensAreThoseOfTransformers) {
  const LanguageModel model = LanguageModel::load(folder(), {.fast = false});
  EXPECT_EQ(model.architecture(), "llama");
  EXPECT_EQ(model.type(), "bfloat16");
  const std::vector<TokenId> ids = ids_of(read_json(folder() + "/ref_logits_mdn512.json").at("ids"));
  ASSERT_EQ(ids.size(), 512u);
  std::ifstream file(folder() + "/ref_logits_mdn512.f16.npy", std::ios::binary);
  const std::string npy{std::istreambuf_iterator<char>(file), {}};
  constexpr std::size_t kRows = 64;
  const std::size_t count = kRows * model.vocabulary();
  ASSERT_GT(npy.size(), 2 * count);
  std::vector<Half> wanted(count);
  std::memcpy(wanted.data(), npy.data() + npy.size() - 2 * count, 2 * count);  // after the header

  Sequence sequence(model, {.context = 512, .cache = CacheKind::float32});
  sequence.append(std::span(ids).first(512 - kRows));
  std::vector<float> logits(count);
  sequence.append(std::span(ids).last(kRows), logits);
  // Our logits agree with a float64 computation to 1e-4; this file differs from both by up to 0.1.
  double worst = 0, squares = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double difference = static_cast<double>(logits[i]) - static_cast<double>(from_half(wanted[i]));
    worst = std::max(worst, std::fabs(difference));
    squares += difference * difference;
  }
  EXPECT_LE(worst, 0.12);
  EXPECT_LE(std::sqrt(squares / static_cast<double>(count)), 0.01);
}

TEST_F(TrainedModel, LogitsAreThoseOfFloat64) {
  // Computed once in Python, float64 throughout, from the files: the ten best after "ROMEO:\nBut soft,".
  constexpr std::pair<TokenId, double> kLogits[] = {
      {1108, 14.74189}, {6326, 13.80209}, {1945, 13.22989}, {335, 13.13185}, {6676, 12.96144},
      {565, 12.26097},  {1335, 12.08817}, {533, 11.93593},  {526, 11.66754}, {388, 11.5599}};
  const LanguageModel model = LanguageModel::load(folder(), {.fast = false});
  Sequence sequence(model, {.context = 64, .cache = CacheKind::float32});
  const std::span<const float> logits = sequence.append(std::vector<TokenId>{7256, 26, 199, 1918, 3652, 12});
  for (const auto& [id, wanted] : kLogits) {
    EXPECT_NEAR(static_cast<double>(logits[static_cast<std::size_t>(id)]), wanted, 1e-4) << id;
  }
}

TEST_F(TrainedModel, ContinuesAsTransformersDoes) {
  const LanguageModel model = LanguageModel::load(folder(), {.fast = false});
  const json reference = read_json(folder() + "/reference.json");
  int prompts = 0;
  for (const auto& [text, entry] : reference.items()) {
    if (!entry.is_object() || !entry.contains("last_logits_top")) continue;
    ++prompts;
    const std::vector<TokenId> ids = ids_of(entry.at("ids"));
    Sequence sequence(model, {.context = 64, .cache = CacheKind::float32});
    const std::span<const float> logits = sequence.append(ids);
    std::vector<TokenId> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<TokenId>(i);
    const std::vector<TokenId> top = ids_of(entry.at("last_logits_top"));
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(top.size()), order.end(),
                      [&](TokenId a, TokenId b) {
                        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
                      });
    order.resize(top.size());
    EXPECT_EQ(order, top) << text;
    const std::vector<double> values = entry.at("last_logits_top_values").get<std::vector<double>>();
    for (std::size_t i = 0; i < top.size(); ++i) {
      EXPECT_NEAR(static_cast<double>(logits[static_cast<std::size_t>(top[i])]), values[i], 5e-3) << text;
    }
    const std::vector<TokenId> all = ids_of(entry.at("greedy"));
    const std::vector<TokenId> wanted(all.begin() + static_cast<std::ptrdiff_t>(ids.size()), all.end());
    EXPECT_EQ(greedy(model, ids, wanted.size()), wanted) << text;
  }
  EXPECT_EQ(prompts, 5);
}

TEST_F(TrainedModel, PerplexityIsWhatLogitsSay) {
  const std::string path = (testing::reference_folder() / "text/eval.txt").string();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << testing::missing_reference("text/eval.txt");
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  text.resize(2000);
  const LanguageModel model = LanguageModel::load(folder(), {.fast = false});
  constexpr std::size_t kWindow = 64;
  std::vector<std::size_t> seen;
  const PerplexityReport report = measure_perplexity(
      model, text, {.context = kWindow, .progress = [&](std::size_t done, std::size_t total, double) {
                      seen.push_back(done);
                      EXPECT_LE(done, total);
                    }});
  const std::vector<TokenId> ids = model.require_tokenizer().encode(text);
  ASSERT_EQ(report.windows, ids.size() / kWindow);
  EXPECT_EQ(report.tokens_scored, report.windows * (kWindow / 2 - 1));
  EXPECT_EQ(seen.size(), report.windows);
  double sum = 0;
  for (std::size_t window = 0; window < report.windows; ++window) {
    Sequence sequence(model, {.context = kWindow, .cache = CacheKind::float32});
    for (std::size_t i = 0; i + 1 < kWindow; ++i) {
      const std::span<const float> logits = sequence.append(std::span(ids).subspan(window * kWindow + i, 1));
      if (i < kWindow / 2) continue;
      const auto next = static_cast<std::size_t>(ids[window * kWindow + i + 1]);
      double total = 0;
      for (const float logit : logits)
        total += std::exp(static_cast<double>(logit) - static_cast<double>(logits[next]));
      sum += std::log(total);
    }
  }
  const double wanted = std::exp(sum / static_cast<double>(report.tokens_scored));
  EXPECT_NEAR(report.perplexity, wanted, 1e-4 * wanted);

  try {
    measure_perplexity(model, "few words", {.context = kWindow});
    ADD_FAILURE() << "too short";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("fewer than one window of 64"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace imago
