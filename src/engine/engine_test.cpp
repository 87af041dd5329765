// The engine on small models: what it says is what generate() says, whoever else is there.

#include "imago/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "imago/data.h"
#include "imago/error.h"
#include "testing/byte_model.h"
#include "testing/on_one_thread.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using testing::TempDir;

constexpr const char* kModels[] = {"llama3_rope_scaling_f16", "gemma2_softcap_f32", "qwen3_moe_f32", "qwen3_5_bf16"};
// With convolutions, the delta rule and scans.
constexpr const char* kModelsWithStates[] = {"lfm2_bf16", "mamba2_bf16", "mamba_bf16", "qwen3_5_bf16"};

std::shared_ptr<LanguageModel> load(const std::string& name, const LanguageModelOptions& options = {.fast = false}) {
  const auto folder = testing::find_torch_model(name);
  if (!folder) throw std::runtime_error(testing::missing_torch_model(name));
  return std::make_shared<LanguageModel>(LanguageModel::load(*folder, options));
}

std::vector<TokenId> some_ids(const LanguageModel& model, std::size_t count, std::size_t seed = 1) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<TokenId>((seed * 37 + i * 101 + i * i * seed) % model.vocabulary()));
  }
  return ids;
}

GenerateOptions greedy(std::size_t tokens) {
  GenerateOptions options{.max_tokens = tokens, .ignore_end = true};
  options.sampler.temperature = 0;
  return options;
}

std::vector<GeneratedToken> tokens_of(Generation& generation) {
  std::vector<GeneratedToken> tokens;
  generation.finish([&](const EngineEvent& event) {
    if (event.token) tokens.push_back(*event.token);
    return true;
  });
  return tokens;
}

TEST(Engine, ReusedStatesSayWhatComputedOnesSay) {
  for (const char* name : kModelsWithStates) {
    const auto model = load(name);
    Engine engine(model, {.context = 300, .cache = CacheKind::float32, .parallel = 3});
    Engine without(model, {.context = 300, .cache = CacheKind::float32, .parallel = 3, .prefix_cache = false});
    const std::vector<TokenId> shared = some_ids(*model, 150);
    for (std::size_t i = 0; i < 4; ++i) {
      std::vector<TokenId> prompt = shared;
      const std::vector<TokenId> own = some_ids(*model, 20 * i, i + 2);
      prompt.insert(prompt.end(), own.begin(), own.end());
      Generation with = engine.submit({.prompt = prompt, .generate = greedy(70)});
      Generation alone = without.submit({.prompt = prompt, .generate = greedy(70)});
      const RequestResult reused = with.finish(), computed = alone.finish();
      EXPECT_EQ(reused.ids, computed.ids) << name << " " << i;
      EXPECT_EQ(reused.cached_tokens, i == 0 ? 0U : 128U) << name << " " << i;
      // What the answer filled is there for those who go on from it.
      if (i != 0) continue;
      prompt.insert(prompt.end(), reused.ids.begin(), reused.ids.end());
      const std::vector<TokenId> next = engine.submit({.prompt = prompt, .generate = greedy(9)}).finish().ids;
      EXPECT_EQ(next, without.submit({.prompt = prompt, .generate = greedy(9)}).finish().ids) << name;
      const TempDir folder;
      const std::string path = folder.path() / "prefix";
      EXPECT_EQ(engine.save_prefix(prompt, path), 192U) << name;
      engine.forget_prefixes();
      EXPECT_EQ(engine.load_prefix(path).size(), 192U);
      Generation loaded = engine.submit({.prompt = prompt, .generate = greedy(9)});
      const RequestResult again = loaded.finish();
      EXPECT_EQ(again.ids, next) << name;
      EXPECT_EQ(again.cached_tokens, 192U) << name;
      engine.forget_prefixes();
      engine.submit({.prompt = shared, .generate = greedy(1)}).finish();
    }
  }
}

TEST(Engine, SaysWhatASequenceAloneSays) {
  for (const char* name : kModels) {
    const auto model = load(name);
    Engine engine(model, {.context = 200, .cache = CacheKind::float32, .parallel = 6});
    std::vector<Generation> generations;
    for (std::size_t i = 0; i < 10; ++i) {
      generations.push_back(engine.submit({.prompt = some_ids(*model, 1 + 9 * i, i), .generate = greedy(20)}));
    }
    for (std::size_t i = 0; i < generations.size(); ++i) {
      Sequence sequence(*model, {.context = 200, .cache = CacheKind::float32});
      const GenerateResult wanted = generate(sequence, some_ids(*model, 1 + 9 * i, i), greedy(20));
      const RequestResult result = generations[i].finish();
      EXPECT_EQ(result.ids, wanted.ids) << name << ", request " << i;
      EXPECT_EQ(result.end, wanted.end);
      EXPECT_EQ(result.prompt_tokens + result.cached_tokens, 1 + 9 * i);
    }
  }
}

struct Precision {
  const char* name;
  std::optional<Format> type;
  bool fast;
};
constexpr Precision kPrecisions[] = {{"as stored", std::nullopt, false},
                                     {"q8_0, fast", Format(BlockFormat::q8_0), true},
                                     {"q4_0, fast", Format(BlockFormat::q4_0), true},
                                     {"q4_0, exact", Format(BlockFormat::q4_0), false}};

/// Log-probabilities of every token, to the bit.
std::vector<std::pair<TokenId, float>> probabilities(Generation& generation) {
  std::vector<std::pair<TokenId, float>> all;
  for (const GeneratedToken& token : tokens_of(generation)) {
    for (const TokenProbability& top : token.top) all.emplace_back(top.id, top.log_probability);
  }
  return all;
}

TEST(Engine, ResultsDoNotDependOnCompany) {
  for (const char* name : kModels) {
    for (const Precision& precision : kPrecisions) {
      const auto model = load(name, {.type = precision.type, .fast = precision.fast});
      GenerateOptions options = greedy(12);
      options.log_probabilities = 5;
      for (const std::size_t prompt : {1, 5, 13, 40, 150}) {
        const Request request{.prompt = some_ids(*model, prompt, 3), .generate = options, .reuse_prefix = false};
        Engine alone(model, {.context = 400, .parallel = 1});
        Generation single = alone.submit(request);
        const auto wanted = probabilities(single);
        ASSERT_EQ(wanted.size(), 12u * 5);

        // Little room for prompts, so that they are cut, and little memory, so that requests are computed again.
        Engine engine(model, {.context = 400, .parallel = 8, .cache_bytes = 0, .prompt_tokens = 48});
        std::vector<Generation> others;
        for (std::size_t i = 0; i < 3; ++i) {
          others.push_back(engine.submit({.prompt = some_ids(*model, 20 + 30 * i, 7 + i), .generate = greedy(100)}));
        }
        Generation in_company = engine.submit(request);
        others.push_back(engine.submit({.prompt = some_ids(*model, 60, 11), .generate = greedy(40)}));
        EXPECT_EQ(probabilities(in_company), wanted) << name << ", " << precision.name << ", a prompt of " << prompt;
      }
    }
  }
}

TEST(Engine, SeedsRepeat) {
  const auto model = load(kModels[0]);
  Request request{.prompt = some_ids(*model, 80), .generate = {.max_tokens = 30, .ignore_end = true}};
  request.generate.sampler.seed = 5;
  request.generate.sampler.presence_penalty = 0.3f;
  Engine alone(model, {.context = 120, .parallel = 1});
  const RequestResult wanted = alone.submit(request).finish();
  Engine engine(model, {.context = 120, .parallel = 4});
  std::vector<Generation> generations;
  for (std::size_t i = 0; i < 4; ++i) generations.push_back(engine.submit(request));
  for (Generation& generation : generations) EXPECT_EQ(generation.finish().ids, wanted.ids);
  EXPECT_EQ(engine.state().cached_tokens, 3u * 79) << "equal prompts are computed once";
}

TEST(Engine, TextStopsAndEventsAreThoseOfGenerate) {
  if (const auto missing = testing::ByteModel::missing()) GTEST_SKIP() << *missing;
  const testing::ByteModel files;
  const auto model = std::make_shared<LanguageModel>(LanguageModel::load(files.path(), {.fast = false}));
  const std::vector<TokenId> prompt = encode_prompt(model->require_tokenizer(), "Up betimes");
  GenerateOptions options = greedy(40);
  Sequence sequence(*model, {.context = 100});
  const std::string text = generate(sequence, prompt, options).text;
  Engine engine(model, {.context = 100});
  for (const std::size_t at : {std::size_t{0}, text.size() / 3, text.size() / 2}) {
    options.stop = {text.substr(at, 4)};
    Sequence again(*model, {.context = 100});
    std::vector<std::string> wanted, got;
    const GenerateResult expected = generate(again, prompt, options, [&](const GeneratedToken& token) {
      wanted.push_back(token.text);
      return true;
    });
    Generation generation = engine.submit({.prompt = prompt, .generate = options});
    const RequestResult result = generation.finish([&](const EngineEvent& event) {
      if (event.token) got.push_back(event.token->text);
      EXPECT_EQ(event.prompt_total, prompt.size());
      return true;
    });
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(result.text, expected.text);
    EXPECT_EQ(result.ids, expected.ids);
    EXPECT_EQ(result.end, EndReason::stop_string);
  }
}

TEST(Engine, StoriesAreTheSameInCompany) {
  const std::filesystem::path file = testing::reference_folder() / "stories" / "stories260K.gguf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << testing::missing_reference("stories/stories260K.gguf");
  const auto model = std::make_shared<LanguageModel>(LanguageModel::load(file.string()));
  Engine engine(model);
  const char* const prompts[] = {"Once upon a time", "The dog", "Lily and Tom went to the park.", "One day, a big"};
  std::vector<Generation> generations;
  for (const char* prompt : prompts) {
    generations.push_back(
        engine.submit({.prompt = encode_prompt(model->require_tokenizer(), prompt), .generate = greedy(100)}));
  }
  for (std::size_t i = 0; i < std::size(prompts); ++i) {
    Sequence sequence(*model);
    EXPECT_EQ(generations[i].finish().text,
              generate(sequence, encode_prompt(model->require_tokenizer(), prompts[i]), greedy(100)).text);
  }
}

TEST(Engine, RefusesWhatItCannotServe) {
  const auto model = load(kModels[0]);
  Engine engine(model, {.context = 20, .parallel = 1, .queue = 2});
  EXPECT_EQ(engine.context(), 20u);
  EXPECT_THROW(engine.submit({}), UsageError);
  EXPECT_THROW(engine.submit({.prompt = {-1}}), UsageError);
  EXPECT_THROW(engine.submit({.prompt = {static_cast<TokenId>(model->vocabulary())}}), UsageError);
  Request request{.prompt = {1}};
  request.generate.sampler.top_p = 2;
  EXPECT_THROW(engine.submit(request), UsageError);
  request.generate.sampler = {.bias = {{static_cast<TokenId>(model->vocabulary()), 1.0f}}};
  EXPECT_THROW(engine.submit(request), UsageError);
  request.generate.sampler = {};
  request.generate.stop = {"x"};
  EXPECT_THROW(engine.submit(request), UnsupportedError) << "the model has no tokenizer";
  try {
    engine.submit({.prompt = some_ids(*model, 21)});
    ADD_FAILURE() << "21 of 20 tokens";
  } catch (const ContextError& error) {
    EXPECT_EQ(error.prompt_tokens(), 21u);
    EXPECT_EQ(error.context(), 20u);
    EXPECT_STREQ(error.what(), "the prompt has 21 tokens, which exceeds the available context size of 20 tokens");
  }
  const RequestResult full = engine.submit({.prompt = some_ids(*model, 20), .generate = greedy(5)}).finish();
  EXPECT_EQ(full.end, EndReason::context_full);
  EXPECT_EQ(full.ids.size(), 1u);
  EXPECT_EQ(engine.state().refused, 1u);

  EXPECT_THROW(Engine(model, {.context = std::size_t{1} << 40}), UsageError);
  EXPECT_THROW(Engine(model, {.context = 20, .prompt_tokens = 0}), UsageError);
}

TEST(Engine, TheQueueIsAsLongAsItMayBe) {
  const auto model = load(kModels[0]);
  Engine engine(model, {.context = 4000, .parallel = 1, .queue = 2});
  std::vector<Generation> generations;
  const auto submit = [&] {
    generations.push_back(engine.submit({.prompt = some_ids(*model, 5, generations.size()), .generate = greedy(3900)}));
  };
  submit();
  generations[0].next();  // runs
  submit();
  submit();
  EXPECT_THROW(submit(), QueueFullError);
  while (engine.state().running.empty()) std::this_thread::yield();
  EXPECT_EQ(engine.state().waiting, 2u);
  generations[1].cancel();
  while (engine.state().waiting == 2) std::this_thread::yield();
  submit();
  EXPECT_EQ(engine.state().refused, 1u);
  const EngineState state = engine.state();
  ASSERT_EQ(state.running.size(), 1u);
  EXPECT_EQ(state.running[0].prompt_tokens, 5u);
  EXPECT_EQ(state.running[0].max_tokens, 3900u);
  EXPECT_GT(state.running[0].seconds, 0);
}

TEST(Engine, CancelledAndDroppedRequestsFreeTheirPages) {
  const auto model = load(kModels[0]);
  Engine engine(model, {.context = 100'000, .parallel = 4, .cache_bytes = 0, .prompt_tokens = 64});
  Generation generation = engine.submit({.prompt = some_ids(*model, 5), .generate = greedy(90'000)});
  std::vector<TokenId> seen;
  const RequestResult result = generation.finish([&](const EngineEvent& event) {
    if (event.token) seen.push_back(event.token->id);
    return seen.size() < 3;
  });
  EXPECT_EQ(result.end, EndReason::cancelled);
  EXPECT_EQ(result.ids, seen);
  EXPECT_EQ(result.prompt_tokens, 5u);
  EXPECT_EQ(engine.state().pages_used, 0u);
  {
    Generation in_prompt = engine.submit({.prompt = some_ids(*model, 90'000, 2), .generate = greedy(5)});
    const RequestResult stopped = in_prompt.finish([](const EngineEvent&) { return false; });
    EXPECT_EQ(stopped.prompt_tokens, 0u);
    EXPECT_EQ(stopped.end, EndReason::cancelled);
    const Generation dropped = engine.submit({.prompt = some_ids(*model, 5, 3), .generate = greedy(90'000)});
  }
  EXPECT_TRUE(engine.drain(60));
  EXPECT_EQ(engine.state().pages_used, 0u);
  EXPECT_EQ(engine.state().cancelled, 3u);
  EXPECT_THROW(engine.submit({.prompt = {1}}), UnsupportedError);
}

TEST(Engine, AGenerationMayOutliveItsEngine) {
  const auto model = load(kModels[0]);
  std::optional<Generation> running, waiting;
  {
    Engine engine(model, {.context = 90'000, .parallel = 1, .cache_bytes = 0});
    running.emplace(engine.submit({.prompt = some_ids(*model, 5), .generate = greedy(80'000)}));
    waiting.emplace(engine.submit({.prompt = some_ids(*model, 5, 2), .generate = greedy(80'000)}));
    running->next();
  }
  EXPECT_EQ(running->finish().end, EndReason::cancelled);
  EXPECT_EQ(waiting->finish().end, EndReason::cancelled);
  EXPECT_TRUE(waiting->result().ids.empty());
}

TEST(Engine, WaitingForAnEventHasAnEnd) {
  const auto model = load(kModels[0]);
  Engine engine(model, {.context = 4000, .parallel = 1});
  Generation first = engine.submit({.prompt = some_ids(*model, 5), .generate = greedy(3900)});
  Generation second = engine.submit({.prompt = some_ids(*model, 5, 2), .generate = greedy(1)});
  const auto [nothing, more] = second.next_within(0.001);
  EXPECT_FALSE(nothing);
  EXPECT_TRUE(more);
  first.cancel();
  EXPECT_EQ(second.finish().ids.size(), 1u);
  const auto [end, further] = second.next_within(0.001);
  EXPECT_FALSE(end);
  EXPECT_FALSE(further);
  EXPECT_FALSE(second.next());
}

TEST(Engine, ManyThreadsAtOnce) {
  const auto model = load(kModels[0]);
  Engine engine(model, {.context = 150, .parallel = 5, .cache_bytes = 100'000, .prompt_tokens = 32});
  std::vector<std::vector<TokenId>> wanted;
  for (std::size_t i = 0; i < 6; ++i) {
    Sequence sequence(*model, {.context = 150});
    wanted.push_back(generate(sequence, some_ids(*model, 10 + 10 * i, i), greedy(25)).ids);
  }
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int round = 0; round < 12; ++round) {
        const std::size_t i = random() % wanted.size();
        Generation generation = engine.submit({.prompt = some_ids(*model, 10 + 10 * i, i), .generate = greedy(25)});
        switch (random() % 4) {
          case 0: generation.cancel(); break;
          case 1: {
            std::thread other([&] { generation.cancel(); });
            const std::vector<TokenId> got = generation.finish().ids;
            EXPECT_TRUE(std::equal(got.begin(), got.end(), wanted[i].begin()));
            other.join();
            break;
          }
          default: EXPECT_EQ(generation.finish().ids, wanted[i]);
        }
        if (t == 0 && round % 4 == 0) engine.forget_prefixes();
        EXPECT_LE(engine.state().pages_used, engine.state().pages);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine.drain(60));
  const EngineState state = engine.state();
  EXPECT_EQ(state.requests, 72u);
  EXPECT_EQ(state.pages_used, 0u);
  EXPECT_GT(state.steps, 0u);
}

TEST(Engine, AModelChangesBetweenSteps) {
  const auto model = load("qwen3_moe_f32");
  Engine engine(model, {.context = 4000, .parallel = 2});
  Request request{.prompt = some_ids(*model, 100), .generate = greedy(20)};
  const RequestResult before = engine.submit(request).finish();
  EXPECT_EQ(engine.submit(request).finish().cached_tokens, 99u);
  Generation running = engine.submit({.prompt = some_ids(*model, 5, 2), .generate = greedy(3000)});
  running.next();
  engine.change_model([](LanguageModel& changed) { changed.morph("ffn", DType::int2); });
  const RequestResult changed = engine.submit(request).finish();
  EXPECT_EQ(changed.cached_tokens, 0u);
  EXPECT_NE(changed.ids, before.ids);
  running.cancel();
  running.finish();
  EXPECT_THROW(engine.change_model([](LanguageModel& model_now) { model_now.morph("nothing", DType::int2); }),
               UsageError);
  engine.change_model([](LanguageModel& changed_back) { changed_back.undo(); });
  EXPECT_EQ(engine.submit(request).finish().ids, before.ids);
}

// The logits are linear in what the output matrix reads, so those of the mean are the mean of those of all tokens.
TEST(Engine, EmbeddingsAreTheMeanOfWhatTheOutputMatrixReads) {
  const std::string name = "llama_tied_f32";
  const auto model = load(name);
  const std::vector<TokenId> ids = some_ids(*model, 90);
  const std::size_t vocabulary = model->vocabulary();
  Engine engine(model, {.context = 200, .cache = CacheKind::float32, .parallel = 1, .prompt_tokens = 40});
  const std::vector<float> embedding = engine.embed(ids);
  Sequence sequence(*model, {.context = 200, .cache = CacheKind::float32});
  std::vector<float> logits(ids.size() * vocabulary);
  sequence.append(ids, logits);
  const Tensor<float> output = SafetensorsFile::open(*testing::find_torch_model(name) + "/model.safetensors")
                                   .read_float32("model.embed_tokens.weight");
  ASSERT_EQ(output.shape(), (Shape{vocabulary, embedding.size()}));
  for (std::size_t v = 0; v < vocabulary; v += 7) {
    double mean = 0, of_embedding = 0;
    for (std::size_t t = 0; t < ids.size(); ++t) mean += static_cast<double>(logits[t * vocabulary + v]);
    for (std::size_t i = 0; i < embedding.size(); ++i) {
      of_embedding += static_cast<double>(embedding[i]) * static_cast<double>(output[v * embedding.size() + i]);
    }
    ASSERT_NEAR(of_embedding, mean / static_cast<double>(ids.size()), 1e-4) << v;
  }
  const EngineState state = engine.state();
  EXPECT_EQ(state.prompt_tokens, ids.size());
  EXPECT_EQ(state.steps, 3u);
  EXPECT_EQ(state.pages_used, 0u);
  EXPECT_THROW(engine.embed(some_ids(*model, 201)), ContextError);
}

TEST(Engine, PrefixesGoToFilesAndBack) {
  const TempDir folder;
  const std::string path = (folder.path() / "prefix").string();
  const auto model = load(kModels[0]);
  const std::vector<TokenId> prompt = some_ids(*model, 150);
  const Request request{.prompt = prompt, .generate = greedy(10)};
  Engine engine(model, {.context = 300, .parallel = 1});
  const RequestResult wanted = engine.submit(request).finish();
  EXPECT_EQ(engine.save_prefix(prompt, path), 150u);

  Engine other(model, {.context = 300, .parallel = 1});
  EXPECT_EQ(other.load_prefix(path), prompt);
  RequestResult result = other.submit(request).finish();
  EXPECT_EQ(result.cached_tokens, 149u);
  EXPECT_EQ(result.ids, wanted.ids);
  EXPECT_EQ(other.state().pages_used, 0u);
  std::vector<TokenId> fork = prompt;
  fork[70] = 1;
  EXPECT_EQ(other.save_prefix(fork, path), 70u);
  EXPECT_EQ(other.load_prefix(path), std::vector<TokenId>(prompt.begin(), prompt.begin() + 70));

  // A sequence reads it too.
  Sequence sequence(*model, {.context = 300});
  sequence.restore(path);
  EXPECT_EQ(sequence.size(), 70u);

  EXPECT_THROW(other.load_prefix((folder.path() / "absent").string()), IoError);
  folder.write("bad", "imagoseq, but no more");
  EXPECT_THROW(other.load_prefix((folder.path() / "bad").string()), FormatError);
  Engine of_another_kind(model, {.context = 300, .cache = CacheKind::float32, .parallel = 1});
  EXPECT_THROW(of_another_kind.load_prefix(path), FormatError);
  other.forget_prefixes();
  EXPECT_EQ(other.submit(request).finish().cached_tokens, 0u);
}

}  // namespace
}  // namespace imago
