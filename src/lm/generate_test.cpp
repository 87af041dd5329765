// The loop, with a small model that has no tokenizer, and with the trained one where it is here.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "imago/error.h"
#include "imago/lm.h"
#include "testing/on_one_thread.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

GenerateOptions greedy(std::size_t tokens) {
  GenerateOptions options;
  options.max_tokens = tokens;
  options.sampler.temperature = 0;
  return options;
}

class SmallModel : public ::testing::Test {
 protected:
  static LanguageModel load() {
    const auto folder = testing::find_torch_model("qwen3_moe_f32");
    if (!folder) throw std::runtime_error(testing::missing_torch_model("qwen3_moe_f32"));
    return LanguageModel::load(*folder, {.fast = false});
  }
  const LanguageModel model_ = load();
  const std::vector<TokenId> prompt_ = {5, 17, 3};
};

TEST_F(SmallModel, GreedyTokensAreTheMostLikelyOnes) {
  Sequence sequence(model_, {.context = 32});
  std::vector<TokenId> seen;
  const GenerateResult result = generate(sequence, prompt_, greedy(6), [&](const GeneratedToken& token) {
    seen.push_back(token.id);
    EXPECT_EQ(token.text, "");  // no tokenizer
    return true;
  });
  EXPECT_EQ(result.ids, seen);
  EXPECT_EQ(result.end, EndReason::max_tokens);
  EXPECT_EQ(result.prompt_tokens, 3u);
  EXPECT_GT(result.prompt_seconds, 0);
  EXPECT_GT(result.generate_seconds, 0);
  EXPECT_EQ(sequence.size(), 3u + 5u);  // the last token is not in it yet

  Sequence stepwise(model_, {.context = 32});
  std::span<const float> logits = stepwise.append(prompt_);
  for (const TokenId id : result.ids) {
    EXPECT_EQ(std::max_element(logits.begin(), logits.end()) - logits.begin(), id);
    logits = stepwise.append({&id, 1});
  }
}

TEST_F(SmallModel, ALongPromptCanBeStoppedBetweenItsBatches) {
  Sequence sequence(model_, {.context = 32, .batch = 2});
  sequence.append(prompt_);
  const std::vector<TokenId> before(sequence.tokens().begin(), sequence.tokens().end());
  GenerateOptions options = greedy(4);
  std::vector<std::size_t> seen;
  options.prompt_progress = [&](std::size_t done, std::size_t total) {
    EXPECT_EQ(total, 7u);
    seen.push_back(done);
    return seen.size() < 2;
  };
  const std::vector<TokenId> prompt = {1, 2, 3, 4, 5, 6, 7};
  const GenerateResult stopped =
      generate(sequence, prompt, options, [](const GeneratedToken&) -> bool { throw std::runtime_error("a token"); });
  EXPECT_EQ(stopped.end, EndReason::cancelled);
  EXPECT_EQ(stopped.prompt_tokens, 0u);
  EXPECT_TRUE(stopped.ids.empty());
  EXPECT_EQ(std::vector<TokenId>(sequence.tokens().begin(), sequence.tokens().end()), before);

  // And what is asked again is as if nothing had been.
  options.prompt_progress = [&](std::size_t done, std::size_t) { return seen.push_back(done), true; };
  const GenerateResult again = generate(sequence, prompt, options);
  EXPECT_EQ(seen, (std::vector<std::size_t>{2, 4, 2, 4, 6}));
  Sequence other(model_, {.context = 32});
  other.append(prompt_);
  EXPECT_EQ(again.ids, generate(other, prompt, greedy(4)).ids);
}

TEST_F(SmallModel, TheContextEndsIt) {
  Sequence sequence(model_, {.context = 8});
  const GenerateResult result = generate(sequence, prompt_, greedy(100));
  EXPECT_EQ(result.end, EndReason::context_full);
  EXPECT_EQ(result.ids.size(), 6u);  // after 3 of 8: five that fit, and one that nothing follows
  EXPECT_EQ(sequence.size(), 8u);

  Sequence narrow(model_, {.context = 2});
  EXPECT_THROW(generate(narrow, prompt_, greedy(1)), UsageError);
  EXPECT_EQ(narrow.size(), 0u);
}

TEST_F(SmallModel, TheCallerEndsIt) {
  Sequence sequence(model_, {.context = 32});
  int seen = 0;
  const GenerateResult result =
      generate(sequence, prompt_, greedy(100), [&](const GeneratedToken&) { return ++seen < 3; });
  EXPECT_EQ(result.end, EndReason::cancelled);
  EXPECT_EQ(result.ids.size(), 3u);
}

TEST_F(SmallModel, NoTokensAreGeneratedWhereNoneAreAskedFor) {
  Sequence sequence(model_, {.context = 32});
  const GenerateResult result = generate(sequence, prompt_, greedy(0));
  EXPECT_TRUE(result.ids.empty());
  EXPECT_EQ(result.end, EndReason::max_tokens);
  EXPECT_EQ(sequence.size(), 3u);
}

TEST_F(SmallModel, LogProbabilitiesAreThoseOfTheLogits) {
  Sequence sequence(model_, {.context = 32});
  GenerateOptions options = greedy(3);
  options.log_probabilities = 4;
  std::vector<GeneratedToken> tokens;
  generate(sequence, prompt_, options, [&](const GeneratedToken& token) {
    tokens.push_back(token);
    return true;
  });
  Sequence other(model_, {.context = 32});
  const std::vector<TokenProbability> wanted = top_log_probabilities(other.append(prompt_), 4);
  ASSERT_EQ(tokens[0].top.size(), 4u);
  EXPECT_EQ(tokens[0].top[0].id, tokens[0].id);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tokens[0].top[i].id, wanted[i].id);
    EXPECT_NEAR(tokens[0].top[i].log_probability, wanted[i].log_probability, 1e-4);
  }
}

TEST_F(SmallModel, SeedsRepeatAndPenaltiesSeeThePrompt) {
  const auto drawn = [&](GenerateOptions options) {
    Sequence sequence(model_, {.context = 64});
    return generate(sequence, prompt_, options).ids;
  };
  GenerateOptions options;
  options.max_tokens = 20;
  options.sampler.seed = 11;
  EXPECT_EQ(drawn(options), drawn(options));
  options = greedy(40);
  options.sampler.presence_penalty = 100;
  options.sampler.penalty_tokens = -1;
  std::vector<TokenId> ids = drawn(options);
  ids.insert(ids.end(), prompt_.begin(), prompt_.end());
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << "a token came twice";
}

TEST_F(SmallModel, StopStringsNeedATokenizer) {
  Sequence sequence(model_, {.context = 32});
  GenerateOptions options = greedy(3);
  options.stop = {"x"};
  EXPECT_THROW(generate(sequence, prompt_, options), UnsupportedError);
  options.stop.clear();
  options.sampler.top_p = 2;
  EXPECT_THROW(generate(sequence, prompt_, options), UsageError);
  EXPECT_EQ(sequence.size(), 0u);
  EXPECT_THROW(generate(sequence, {}, greedy(1)), UsageError);
}

/// What follows the prompt.
std::vector<TokenId> continuation(const nlohmann::json& prompt) {
  auto ids = prompt.at("greedy").get<std::vector<TokenId>>();
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(prompt.at("ids").size()));
  return ids;
}

class TrainedGenerator : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::filesystem::path folder = testing::reference_folder() / "lm";
    if (!std::filesystem::exists(folder / "config.json")) GTEST_SKIP() << testing::missing_reference("lm");
    nlohmann::json reference;
    std::ifstream(folder / "reference.json") >> reference;
    for (const auto& [text, entry] : reference.items()) {
      if (entry.is_object() && entry.contains("greedy")) prompts_.push_back(entry);
    }
    ASSERT_GE(prompts_.size(), 1u);
    model_.emplace(LanguageModel::load(folder.string(), {.fast = false}));
  }
  std::vector<nlohmann::json> prompts_;
  std::optional<LanguageModel> model_;
};

TEST_F(TrainedGenerator, GreedyTextIsThatOfTransformers) {
  for (const nlohmann::json& prompt : prompts_) {
    const auto ids = prompt.at("ids").get<std::vector<TokenId>>();
    const std::vector<TokenId> wanted = continuation(prompt);
    Sequence sequence(*model_, {.cache = CacheKind::float32});
    std::string streamed;
    GenerateOptions options = greedy(wanted.size());
    options.ignore_end = true;
    const GenerateResult result = generate(sequence, ids, options, [&](const GeneratedToken& token) {
      streamed += token.text;
      return true;
    });
    EXPECT_EQ(result.ids, wanted);
    EXPECT_EQ(streamed, result.text);
    EXPECT_EQ(result.text, model_->require_tokenizer().decode(wanted));
  }
}

TEST_F(TrainedGenerator, StopStringsEndTheTextBeforeThem) {
  const nlohmann::json& prompt = prompts_.at(0);
  const auto ids = prompt.at("ids").get<std::vector<TokenId>>();
  const std::vector<TokenId> continued = continuation(prompt);
  const std::string text = model_->require_tokenizer().decode(continued);
  // Any piece of the text may stop it, also one that starts amid a token.
  for (const std::size_t at : {std::size_t{3}, text.size() / 3, text.size() / 2}) {
    const std::string stop = text.substr(at, 5);
    GenerateOptions options = greedy(continued.size());
    options.stop = {"\x01never", stop};
    Sequence sequence(*model_, {.cache = CacheKind::float32});
    std::string streamed;
    const GenerateResult result = generate(sequence, ids, options, [&](const GeneratedToken& token) {
      streamed += token.text;
      return true;
    });
    EXPECT_EQ(result.end, EndReason::stop_string);
    EXPECT_EQ(result.text, text.substr(0, text.find(stop)));
    EXPECT_EQ(streamed, result.text);
  }
}

TEST_F(TrainedGenerator, TheEndTokenEndsItUnlessIgnored) {
  const Tokenizer& tokenizer = model_->require_tokenizer();
  ASSERT_TRUE(tokenizer.eos());
  GenerateOptions options = greedy(5);
  options.sampler.bias = {{*tokenizer.eos(), 1000.0f}};
  Sequence sequence(*model_);
  const std::vector<TokenId> prompt = tokenizer.encode("Hello");
  const GenerateResult ended = generate(sequence, prompt, options);
  EXPECT_EQ(ended.end, EndReason::end_token);
  EXPECT_TRUE(ended.ids.empty());
  options.ignore_end = true;
  const GenerateResult went_on = generate(sequence, prompt, options);
  EXPECT_EQ(went_on.end, EndReason::max_tokens);
  EXPECT_EQ(went_on.ids, std::vector<TokenId>(5, *tokenizer.eos()));
  EXPECT_EQ(went_on.text, "");
}

}  // namespace
}  // namespace imago
