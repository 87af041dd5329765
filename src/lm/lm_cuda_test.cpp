// Language models on a GPU: against transformers, against the host, and against themselves by other ways.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "imago/device.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "imago/numeric.h"
#include "lm/forward.h"
#include "lm/language_model_state.h"
#include "testing/cross_encoder.h"
#include "testing/paged_sequences.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const fs::path& path) {
  std::ifstream file(path);
  return json::parse(file);
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    worst = difference <= worst ? worst : difference;  // NaN wins
  }
  return worst;
}

/// Root mean square of the difference, on the scale of what is wanted.
double relative_error(std::span<const float> got, std::span<const float> wanted) {
  if (got.size() != wanted.size()) return INFINITY;
  double error = 0, power = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - static_cast<double>(wanted[i]);
    error += difference * difference;
    power += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
  }
  return std::sqrt(error / power);
}

/// The median of the errors of tokens: what is rounded may go to other experts, which changes some of them by far more.
double usual_error(std::span<const float> got, std::span<const float> wanted, std::size_t tokens) {
  if (got.size() != wanted.size()) return INFINITY;
  const std::size_t row = got.size() / tokens;
  std::vector<double> errors;
  for (std::size_t i = 0; i < tokens; ++i) {
    const double error = relative_error(got.subspan(i * row, row), wanted.subspan(i * row, row));
    errors.push_back(std::isnan(error) ? INFINITY : error);
  }
  std::ranges::nth_element(errors, errors.begin() + static_cast<std::ptrdiff_t>(tokens / 2));
  return errors[tokens / 2];
}

std::vector<float> copy_of(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

std::vector<float> all_logits(const LanguageModel& model, std::span<const TokenId> ids, SequenceOptions options = {}) {
  options.context = std::max(options.context, ids.size());
  Sequence sequence(model, options);
  std::vector<float> logits(ids.size() * model.vocabulary());
  sequence.append(ids, logits);
  return logits;
}

std::vector<float> logits_by_steps(const LanguageModel& model, std::span<const TokenId> ids, CacheKind cache) {
  Sequence sequence(model, {.context = ids.size(), .cache = cache});
  std::vector<float> logits;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::span<const float> row = sequence.append(ids.subspan(i, 1));
    logits.insert(logits.end(), row.begin(), row.end());
  }
  return logits;
}

std::vector<TokenId> greedy(const LanguageModel& model, const std::vector<TokenId>& prompt, std::size_t count) {
  Sequence sequence(model, {.context = prompt.size() + count, .cache = CacheKind::float32});
  GenerateOptions options{.max_tokens = count, .ignore_end = true};
  options.sampler.temperature = 0;
  return generate(sequence, prompt, options).ids;
}

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (accelerators().empty()) GTEST_SKIP() << "no CUDA device: " << accelerator_problem();
    device_ = open_device("cuda");
  }

  LanguageModel load(const fs::path& path, LanguageModelOptions options = {}) const {
    options.device = device_;
    return LanguageModel::load(path.string(), options);
  }
  static fs::path torch_model(const std::string& name) { return testing::find_torch_model(name).value_or(""); }

  std::shared_ptr<Device> device_;
};

class TorchModelOnGpu : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    folder_ = torch_model(GetParam());
    if (folder_.empty()) GTEST_SKIP() << testing::missing_torch_model(GetParam());
    try {
      load(folder_);
    } catch (const UnsupportedError& error) {
      // Refused by the step that the backend does not have, before anything is computed.
      EXPECT_NE(std::string(error.what()).find("does not run"), std::string::npos) << error.what();
      GTEST_SKIP() << error.what();
    }
    reference_ = read_json(folder_ / "reference.json");
    ids_ = reference_.at("ids").get<std::vector<TokenId>>();
  }

  fs::path folder_;
  json reference_;
  std::vector<TokenId> ids_;
};

TEST_P(TorchModelOnGpu, LogitsAndContinuationAreThoseOfTransformers) {
  const double tolerance = std::string(GetParam()).ends_with("16") ? 2e-2 : 2e-3;
  const LanguageModel model = load(folder_, {.fast = false});
  std::vector<float> wanted;
  for (const auto& row : reference_.at("logits")) {
    const auto values = row.get<std::vector<float>>();
    wanted.insert(wanted.end(), values.begin(), values.end());
  }
  const double batch = largest_difference(all_logits(model, ids_, {.cache = CacheKind::float32}), wanted);
  const double steps = largest_difference(logits_by_steps(model, ids_, CacheKind::float32), wanted);
  std::printf("%-26s batch %.2e steps %.2e\n", GetParam(), batch, steps);
  EXPECT_LE(batch, tolerance);
  EXPECT_LE(steps, tolerance);
  const auto all = reference_.at("greedy").get<std::vector<TokenId>>();
  const std::vector<TokenId> continuation(all.begin() + static_cast<std::ptrdiff_t>(ids_.size()), all.end());
  EXPECT_EQ(greedy(model, ids_, continuation.size()), continuation);
}

bool chooses_experts(const fs::path& folder) {
  const json config = read_json(folder / "config.json");
  return std::ranges::any_of(config.items(), [](const auto& item) { return item.key().ends_with("experts_per_tok"); });
}

TEST_P(TorchModelOnGpu, FastIsNearTheHost) {
  for (const std::optional<Format> type :
       {std::optional<Format>(), std::optional<Format>(BlockFormat::q8_0), std::optional<Format>(BlockFormat::q4_0),
        std::optional<Format>(DType::int8)}) {
    const LanguageModel host = LanguageModel::load(folder_.string(), {.type = type, .fast = false});
    const LanguageModel gpu = load(folder_, {.type = type, .fast = true});
    const std::vector<float> wanted = all_logits(host, ids_, {.cache = CacheKind::float32});
    const double batch = usual_error(all_logits(gpu, ids_), wanted, ids_.size());
    const double steps = usual_error(logits_by_steps(gpu, ids_, CacheKind::float16), wanted, ids_.size());
    // bfloat16 keeps 8 bits and int8 7, and errors add up over the layers, in some models to more than in others, as
    // they do on the host: those of batches and of steps, which differ there, too, where it has tiles of bfloat16.
    const LanguageModel rounding = LanguageModel::load(folder_.string(), {.type = type});
    const double batch_here = usual_error(all_logits(rounding, ids_), wanted, ids_.size());
    const double steps_here = usual_error(logits_by_steps(rounding, ids_, CacheKind::float16), wanted, ids_.size());
    std::printf("%-26s %-6s fast: batch %.2e steps %.2e, on the host %.2e %.2e\n", GetParam(),
                type ? std::string(type->name()).c_str() : "stored", batch, steps, batch_here, steps_here);
    const double least =
        chooses_experts(folder_) ? 0.2 : 0.03;  // more than every other token of a small model may change
    EXPECT_LE(batch, std::max(least, 3 * batch_here));
    EXPECT_LE(steps, std::max(least, 3 * steps_here));
  }
}

TEST_P(TorchModelOnGpu, PartsAreTheWhole) {
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const std::vector<float> wanted = all_logits(host, ids_, {.cache = CacheKind::float32});
  const double tolerance = 1e-3;
  for (const std::size_t layers :
       {std::size_t{1}, std::size_t{2}, std::size_t{4}, std::numeric_limits<std::size_t>::max()}) {
    LanguageModelOptions options{.fast = false};
    options.gpu_layers = layers;
    const LanguageModel model = load(folder_, options);
    EXPECT_LE(largest_difference(all_logits(model, ids_, {.cache = CacheKind::float32}), wanted), tolerance) << layers;
    EXPECT_LE(largest_difference(all_logits(model, ids_, {.cache = CacheKind::float32, .batch = 7}), wanted), tolerance)
        << layers << " layers, batches of 7";
    EXPECT_LE(largest_difference(logits_by_steps(model, ids_, CacheKind::float32), wanted), tolerance) << layers;
    // Only the last row of a prompt is read, and none of its batches but the last. (Batches of up to 8 are steps.)
    for (const std::size_t batch : {ids_.size(), std::size_t{5}, std::size_t{12}}) {
      Sequence prompt(model, {.context = ids_.size(), .cache = CacheKind::float32, .batch = batch});
      EXPECT_LE(largest_difference(copy_of(prompt.append(ids_)),
                                   {wanted.end() - static_cast<std::ptrdiff_t>(model.vocabulary()), wanted.end()}),
                tolerance)
          << layers << " layers, last of batches of " << batch;
    }
    EXPECT_GT(model.bytes(), 0u);
  }
}

TEST_P(TorchModelOnGpu, MorphedItComputesWhatTheModelLoadedInThatTypeDoes) {
  LanguageModel model = load(folder_);
  const std::vector<float> before = logits_by_steps(model, ids_, CacheKind::float16);
  logits_by_steps(model, ids_, CacheKind::float16);  // by recorded steps, if they were not before
  const LanguageModel loaded = load(folder_, {.type = BlockFormat::q8_0});
  model.morph(".", BlockFormat::q8_0);
  EXPECT_EQ(model.bytes(), loaded.bytes());
  for (int i = 0; i < 2; ++i) {  // first without a recording, then by it
    EXPECT_EQ(logits_by_steps(model, ids_, CacheKind::float16), logits_by_steps(loaded, ids_, CacheKind::float16));
  }
  model.undo();
  EXPECT_EQ(logits_by_steps(model, ids_, CacheKind::float16), before);
}

INSTANTIATE_TEST_SUITE_P(All, TorchModelOnGpu, ::testing::ValuesIn(testing::kTorchModels),
                         [](const auto& one) { return std::string(one.param); });

INSTANTIATE_TEST_SUITE_P(More, TorchModelOnGpu, ::testing::ValuesIn(testing::kMoreModels),
                         [](const auto& one) { return std::string(one.param); });

class EncoderOnGpu : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    folder_ = torch_model(GetParam());
    if (folder_.empty()) GTEST_SKIP() << testing::missing_torch_model(GetParam());
    reference_ = read_json(folder_ / "reference.json");
    ids_ = reference_.at("ids").get<std::vector<TokenId>>();
  }

  fs::path folder_;
  json reference_;
  std::vector<TokenId> ids_;
};

TEST_P(EncoderOnGpu, HiddenStatesAreThoseOfTransformers) {
  std::vector<float> wanted;
  for (const auto& row : reference_.at("hidden")) {
    const auto values = row.get<std::vector<float>>();
    wanted.insert(wanted.end(), values.begin(), values.end());
  }
  const LanguageModel exact = load(folder_, {.fast = false});
  EXPECT_LE(largest_difference(hidden_states(exact, ids_), wanted), 2e-3);
  const LanguageModel fast = load(folder_, {.type = BlockFormat::q8_0});
  const LanguageModel host = LanguageModel::load(folder_.string(), {.type = BlockFormat::q8_0, .fast = false});
  for (const std::size_t count : {std::size_t{1}, std::size_t{6}, ids_.size()}) {  // few tokens, and a tile of them
    const std::span<const TokenId> some = std::span(ids_).first(count);
    const double error = relative_error(hidden_states(fast, some), hidden_states(host, some));
    std::printf("%-26s %zu tokens, fast: %.2e\n", GetParam(), count, error);
    EXPECT_LE(error, 0.03);
  }
}

TEST_P(EncoderOnGpu, PartsAreTheWhole) {
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  LanguageModelOptions options{.fast = false};
  options.gpu_layers = 1;
  const LanguageModel model = load(folder_, options);
  EXPECT_LE(largest_difference(hidden_states(model, ids_), hidden_states(host, ids_)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(More, EncoderOnGpu, ::testing::ValuesIn(testing::kEmbeddingModels),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(GpuTest, BlocksStayBesideTheCachesThatTheyAttendTo) {
  const fs::path folder = torch_model("gemma4_bf16");  // the last two of 6 blocks attend to caches of the two before
  if (folder.empty()) GTEST_SKIP() << testing::missing_torch_model("gemma4_bf16");
  for (const std::size_t layers : {1, 3, 4, 6}) {
    LanguageModelOptions options;
    options.gpu_layers = layers;
    const LanguageModel model = load(folder, options);
    const auto& runners = LanguageModelAccess::loaded(model).weights.runners;
    EXPECT_EQ(runners.back()->device()->is_host(), layers < 4) << layers;
    const bool is_noted = std::ranges::any_of(
        model.notes(), [](const std::string& note) { return note.find("stay on the host") != std::string::npos; });
    EXPECT_EQ(is_noted, layers < 4) << layers;
  }
}

TEST_F(GpuTest, PairsOfTextsAreScoredAsOnTheHost) {
  if (const auto missing = testing::CrossEncoder::missing()) GTEST_SKIP() << *missing;
  const testing::CrossEncoder encoder;
  const std::vector<TokenId> ids = {2, 9, 30, 4, 3, 17, 8, 25, 6, 3, 2, 5, 3, 7, 3};
  // A pair, and another one in the same batch.
  const auto scores_of = [&](const LanguageModel& model) {
    const lm::LoadedModel& loaded = LanguageModelAccess::loaded(model);
    const lm::KvCache cache(*loaded.weights.program, CacheKind::float32, 64, loaded.weights.runners, 2);
    const std::vector<std::uint32_t> first = {0}, second = {1};
    const lm::Segment pairs[] = {{.cache = &cache, .tokens = 10, .pages = first, .second_text = 5},
                                 {.cache = &cache, .tokens = 5, .pages = second, .second_text = 3}};
    backend::Workspace work;
    lm::run_model(loaded, pairs, 10, {.ids = ids, .segments = {}, .work = work, .all_rows = true});
    const std::size_t width = model.embedding_width();
    std::vector<float> hidden(ids.size() * width), pooled, scores(2);
    backend::Runner& last = *loaded.weights.runners.back();
    last.compute_hidden(work, 0, ids.size(), hidden);
    for (const std::size_t token : {0, 10}) {
      const auto row = hidden.begin() + static_cast<std::ptrdiff_t>(token * width);
      pooled.insert(pooled.end(), row, row + static_cast<std::ptrdiff_t>(width));
    }
    last.run_head(pooled, work, scores);
    scores.insert(scores.end(), hidden.begin(), hidden.end());
    return scores;
  };
  const std::vector<float> wanted = scores_of(LanguageModel::load(encoder.path(), {.fast = false}));
  EXPECT_LE(largest_difference(scores_of(load(encoder.path(), {.fast = false})), wanted), 1e-3);
  EXPECT_LE(relative_error(scores_of(load(encoder.path())), wanted), 0.03);
}

/// With one model that has all that matters to sequences.
class SequenceOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    folder_ = torch_model("qwen3_qknorm_f32");
    ids_ = read_json(folder_ / "reference.json").at("ids").get<std::vector<TokenId>>();
  }
  fs::path folder_;
  std::vector<TokenId> ids_;
};

TEST_F(SequenceOnGpu, ReplayedStepsAreThoseThatRanDirectly) {
  for (const char* const name :
       {"qwen3_qknorm_f32", "gemma2_softcap_f32", "gpt2_f32", "olmo2_f32", "mamba_bf16", "lfm2_moe_bf16",
        "qwen3_5_bf16", "deepseek_v2_lite_bf16", "deepseek_v3_bf16", "gemma4_bf16"}) {
    if (torch_model(name).empty()) continue;
    for (const bool fast : {false, true}) {
      const LanguageModel model = load(torch_model(name), {.type = Format(BlockFormat::q8_0), .fast = fast});
      const std::vector<float> replayed = logits_by_steps(model, ids_, CacheKind::float16);
      LanguageModelAccess::loaded(model).weights.runners.back()->use_graphs(false);
      EXPECT_EQ(largest_difference(logits_by_steps(model, ids_, CacheKind::float16), replayed), 0) << name << fast;
    }
  }
}

TEST_F(SequenceOnGpu, CachesOfAllKinds) {
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const LanguageModel model = load(folder_, {.fast = false});
  for (const CacheKind kind : {CacheKind::float32, CacheKind::float16, CacheKind::q8_0}) {
    const std::vector<float> wanted = all_logits(host, ids_, {.cache = kind});
    const double bound = kind == CacheKind::float32 ? 1e-4 : 2e-3;
    EXPECT_LE(relative_error(all_logits(model, ids_, {.cache = kind}), wanted), bound) << static_cast<int>(kind);
    EXPECT_LE(relative_error(logits_by_steps(model, ids_, kind), wanted), bound) << static_cast<int>(kind);
  }
}

TEST_F(SequenceOnGpu, LongSequencesOutgrowTheirBuckets) {
  // Positions beyond the buckets of attention and the first table of rotations; steps of which graphs change.
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < 1300; ++i) ids.push_back(static_cast<TokenId>((i * 7919 + i / 3) % 256));
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const LanguageModel model = load(folder_, {.fast = false});
  Sequence here(host, {.context = ids.size(), .cache = CacheKind::float16});
  Sequence there(model, {.context = ids.size(), .cache = CacheKind::float16});
  std::size_t at = 0;
  for (const std::size_t piece :
       {250u, 1u, 1u, 1u, 1u, 3u, 3u, 3u, 1u, 246u, 1u, 1u, 1u, 1u, 509u, 1u, 1u, 1u, 270u, 1u, 1u, 1u}) {
    const std::span<const TokenId> some = std::span<const TokenId>(ids).subspan(at, piece);
    EXPECT_LE(relative_error(there.append(some), here.append(some)), 5e-3) << at << " + " << piece;
    at += piece;
  }
}

TEST_F(SequenceOnGpu, IsSavedRestoredAndCut) {
  const std::string path = (fs::temp_directory_path() / "imago_gpu_sequence.bin").string();
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const LanguageModel model = load(folder_, {.fast = false});
  LanguageModelOptions half{.fast = false};
  half.gpu_layers = 1;
  const LanguageModel split = load(folder_, half);
  for (const CacheKind kind : {CacheKind::float32, CacheKind::float16, CacheKind::q8_0}) {
    Sequence first(model, {.context = 64, .cache = kind});
    first.append(std::span(ids_).first(15));
    first.save(path);
    first.append(std::span(ids_).subspan(15, 4));
    first.truncate(15);
    const std::vector<float> wanted = copy_of(first.append(std::span(ids_).subspan(15, 1)));
    for (const LanguageModel* const other : {&model, &host, &split}) {
      Sequence second(*other, {.context = 40, .cache = kind});
      second.restore(path);
      EXPECT_EQ(second.size(), 15u);
      EXPECT_LE(relative_error(second.append(std::span(ids_).subspan(15, 1)), wanted), 2e-3);
      second.truncate(15);
      const std::string again = path + ".2";
      second.save(again);
      Sequence third(model, {.context = 64, .cache = kind});
      third.restore(again);
      EXPECT_LE(relative_error(third.append(std::span(ids_).subspan(15, 1)), wanted), 1e-6);
      fs::remove(again);
    }
  }
  fs::remove(path);
}

TEST_F(SequenceOnGpu, SeveralTogether) {
  for (const char* const name : {"qwen3_qknorm_f32", "mixtral_moe_f32"}) {
    for (const std::size_t count : {3u, 12u}) {
      LanguageModelOptions options{.fast = false};
      options.gpu_layers = count == 3 ? std::numeric_limits<std::size_t>::max() : 1;
      const LanguageModel model = load(torch_model(name), options);
      std::vector<Sequence> together, alone;
      std::vector<Sequence*> pointers;
      for (std::size_t i = 0; i < count; ++i) {
        // Two kinds of room, neighbours and not.
        const SequenceOptions sizes{.context = i % 5 == 1 ? 40u : 64u, .cache = CacheKind::float32};
        together.emplace_back(model, sizes);
        alone.emplace_back(model, sizes);
        const std::span<const TokenId> prompt = std::span<const TokenId>(ids_).first(2 + i);
        together.back().append(prompt);
        alone.back().append(prompt);
      }
      for (Sequence& one : together) pointers.push_back(&one);
      std::vector<float> logits(count * model.vocabulary());
      for (std::size_t step = 0; step < 4; ++step) {
        std::vector<TokenId> next;
        for (std::size_t i = 0; i < count; ++i) next.push_back(ids_[(i + step) % ids_.size()]);
        append_together(pointers, next, logits);
        for (std::size_t i = 0; i < count; ++i) {
          EXPECT_LE(largest_difference(std::span(logits).subspan(i * model.vocabulary(), model.vocabulary()),
                                       alone[i].append(std::span(next).subspan(i, 1))),
                    1e-3)
              << name << ": sequence " << i << " of " << count << ", step " << step;
        }
      }
    }
  }
}

TEST_F(SequenceOnGpu, BatchesOfPiecesAndStepsInPages) {
  for (const char* const name :
       {"qwen3_qknorm_f32", "mixtral_moe_f32", "mistral_sliding_f32", "gpt2_f32", "deepseek_v3_bf16", "gemma4_bf16"}) {
    if (torch_model(name).empty()) continue;
    const LanguageModel host = LanguageModel::load(torch_model(name).string(), {.fast = false});
    const LanguageModel model = load(torch_model(name), {.fast = false});
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < 60; ++i) ids.push_back(static_cast<TokenId>((i * 7919 + i / 3) % host.vocabulary()));
    const auto part = [&](std::size_t begin, std::size_t end) {
      return std::vector<TokenId>(ids.begin() + static_cast<std::ptrdiff_t>(begin),
                                  ids.begin() + static_cast<std::ptrdiff_t>(end));
    };
    testing::PagedSequences here(host, CacheKind::float32, 4, 1), there(model, CacheKind::float32, 4, 1);
    const std::vector<std::vector<testing::PagedSequences::Piece>> batches = {
        {{0, part(0, 20), false}, {1, part(0, 3)}},
        {{2, part(0, 1)}, {1, part(3, 4)}, {0, part(20, 50)}, {3, part(5, 6)}},
        {{0, part(50, 51)}, {1, part(4, 5)}, {2, part(1, 2)}, {3, part(6, 7)}},
        {{3, part(7, 8)}, {2, part(2, 30), false}, {0, part(51, 52)}},
        {{0, part(52, 53)}, {1, part(5, 6)}, {2, part(30, 31)}, {3, part(8, 9)}},
    };
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto wanted = here.run(batches[i]), got = there.run(batches[i]);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t row = 0; row < got.size(); ++row) {
        EXPECT_LE(relative_error(got[row], wanted[row]), 1e-4) << name << ", batch " << i << ", row " << row;
      }
    }
    here.copy(0, 3, 40);
    there.copy(0, 3, 40);
    EXPECT_LE(relative_error(there.run({{3, part(9, 10)}})[0], here.run({{3, part(9, 10)}})[0]), 1e-4) << name;
  }
}

TEST_F(SequenceOnGpu, StepsInPagesGoOnAcrossTheirBorders) {
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const LanguageModel model = load(folder_, {.fast = false});
  testing::PagedSequences here(host, CacheKind::float32, 2, 3), there(model, CacheKind::float32, 2, 3);
  for (std::size_t i = 0; i < 140; ++i) {  // recorded steps, as few tokens are
    const std::vector<testing::PagedSequences::Piece> step = {{0, {static_cast<TokenId>(i * 7919 % 256)}},
                                                              {1, {static_cast<TokenId>(i * 131 % 256)}}};
    const auto wanted = here.run(step), got = there.run(step);
    ASSERT_LE(relative_error(got[0], wanted[0]), 1e-4) << "step " << i;
    ASSERT_LE(relative_error(got[1], wanted[1]), 1e-4) << "step " << i;
  }
}

/// Models with states, one of each kind of step that passes them on.
class StatesOnGpu : public GpuTest, public ::testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    folder_ = torch_model(GetParam());
    if (folder_.empty()) GTEST_SKIP() << testing::missing_torch_model(GetParam());
    for (std::size_t i = 0; i < 120; ++i) ids_.push_back(static_cast<TokenId>((i * 7919 + i / 3) % 256));
  }
  std::vector<TokenId> part(std::size_t begin, std::size_t end) const {
    return {ids_.begin() + static_cast<std::ptrdiff_t>(begin), ids_.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  fs::path folder_;
  std::vector<TokenId> ids_;
};

TEST_P(StatesOnGpu, OfSeveralSequencesInABatchAreThoseOfTheHost) {
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  LanguageModelOptions half{.fast = false};
  half.gpu_layers = 1;
  for (const LanguageModel& model : {load(folder_, {.fast = false}), load(folder_, half)}) {
    testing::PagedSequences here(host, CacheKind::float32, 4, 2), there(model, CacheKind::float32, 4, 2);
    const auto expect_same = [&](const std::vector<testing::PagedSequences::Piece>& pieces, const std::string& what) {
      const auto wanted = here.run(pieces), got = there.run(pieces);
      ASSERT_EQ(got.size(), wanted.size());
      for (std::size_t row = 0; row < got.size(); ++row) {
        EXPECT_LE(relative_error(got[row], wanted[row]), 1e-4) << what << ", row " << row;
      }
    };
    expect_same({{0, part(0, 70), false}, {1, part(0, 3)}}, "prompts");
    expect_same({{2, part(0, 1)}, {1, part(3, 4)}, {0, part(70, 100)}, {3, part(5, 6)}}, "pieces and steps");
    for (std::size_t i = 0; i < 4; ++i) {  // recorded from the second on
      expect_same({{0, part(100 + i, 101 + i)}, {1, part(4 + i, 5 + i)}, {2, part(1 + i, 2 + i)}}, "steps");
    }
    here.copy(0, 3, 104);
    there.copy(0, 3, 104);
    expect_same({{3, part(104, 105)}}, "a copy");
    // States that are kept on the way, in a prompt and in a short piece, belong to the sequence that goes on there.
    for (const std::size_t tokens : {std::size_t{40}, std::size_t{5}}) {
      for (const std::size_t kept : {std::size_t{1}, tokens - 2, tokens}) {
        here.restart(0);
        there.restart(0);
        expect_same({{.sequence = 0, .ids = part(0, tokens), .kept_tokens = kept, .kept_by = 2}}, "a piece");
        here.copy_rows(0, 2, kept);
        there.copy_rows(0, 2, kept);
        expect_same({{2, part(kept, kept + 3)}, {0, part(tokens, tokens + 1)}},
                    std::to_string(kept) + " kept of " + std::to_string(tokens));
      }
    }
  }
}

TEST_P(StatesOnGpu, AreSavedAndRestoredHereAndOnTheHost) {
  const std::string path = (fs::temp_directory_path() / "imago_gpu_states.bin").string();
  const LanguageModel host = LanguageModel::load(folder_.string(), {.fast = false});
  const LanguageModel model = load(folder_, {.fast = false});
  const SequenceOptions options{.context = 64, .cache = CacheKind::float32};
  for (const LanguageModel* const first : {&model, &host}) {
    Sequence begun(*first, options);
    begun.append(std::span(ids_).first(15));
    begun.save(path);
    const std::vector<float> wanted = copy_of(begun.append(std::span(ids_).subspan(15, 1)));
    for (const LanguageModel* const second : {&model, &host}) {
      Sequence restored(*second, options);
      restored.append(std::span(ids_).last(5));
      restored.restore(path);
      EXPECT_LE(relative_error(restored.append(std::span(ids_).subspan(15, 1)), wanted), 1e-4);
      restored.truncate(9);
      Sequence again(host, options);
      again.append(std::span(ids_).first(9));
      EXPECT_LE(relative_error(restored.append(std::span(ids_).last(2)), again.append(std::span(ids_).last(2))), 1e-4);
    }
  }
  fs::remove(path);
}

INSTANTIATE_TEST_SUITE_P(All, StatesOnGpu,
                         ::testing::Values("lfm2_bf16", "mamba_bf16", "mamba2_bf16", "qwen3_5_moe_bf16",
                                           "qwen3_next_bf16", "granite_hybrid_bf16", "falcon_h1_bf16",
                                           "nemotron_h_bf16"),
                         [](const auto& one) { return std::string(one.param); });

TEST_F(SequenceOnGpu, ThreadsTakeTurns) {
  const LanguageModel model = load(folder_, {.fast = false});
  const std::vector<TokenId> wanted = greedy(model, ids_, 16);
  std::vector<std::vector<TokenId>> made(4);
  std::vector<std::thread> threads;
  for (auto& one : made) threads.emplace_back([&] { one = greedy(model, ids_, 16); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : made) EXPECT_EQ(one, wanted);
}

TEST_F(SequenceOnGpu, TokensAreChosenThere) {
  const LanguageModel model = load(folder_, {.fast = false});
  const auto made = [&](float temperature, int top_k, float penalty, std::uint64_t seed) {
    Sequence sequence(model, {.context = 64, .cache = CacheKind::float32});
    GenerateOptions options{.max_tokens = 16, .ignore_end = true};
    options.sampler = {.temperature = temperature, .top_k = top_k, .presence_penalty = penalty, .seed = seed};
    return generate(sequence, ids_, options).ids;
  };
  const std::vector<TokenId> best = greedy(model, ids_, 16);
  EXPECT_EQ(made(0.7f, 1, 0, 5), best);
  EXPECT_EQ(made(0, 40, 1e-9f, 5), best) << "the sampler of the host";
  EXPECT_EQ(made(0.9f, 40, 0, 7), made(0.9f, 40, 0, 7));
  EXPECT_EQ(made(0.9f, 40, 0, 7).size(), 16u);
  // The same numbers choose the same tokens, but where one falls between two roundings.
  int same = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    same += made(0.9f, 40, 0, seed) == made(0.9f, 40, 1e-9f, seed) ? 1 : 0;
  }
  EXPECT_GE(same, 18);
}

TEST_F(SequenceOnGpu, WhatDoesNotFitIsSaidInNumbers) {
  const LanguageModel model = load(folder_);
  try {
    LanguageModelAccess::loaded(model).weights.runners.back()->make_cache(kernels::CacheType::f16, std::size_t{1} << 36,
                                                                          1, 1);
    ADD_FAILURE() << "terabytes";
  } catch (const DeviceError& error) {
    EXPECT_NE(std::string(error.what()).find("that are free; a context of "), std::string::npos) << error.what();
  }
}

/// The trained model, if it is here.
class TrainedModelOnGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (IsSkipped()) return;
    folder_ = testing::reference_folder() / "lm";
    if (!fs::exists(folder_ / "config.json")) GTEST_SKIP() << testing::missing_reference("lm");
  }
  fs::path folder_;
};

TEST_F(TrainedModelOnGpu, LogitsAfter512TokensAreThoseOfTransformers) {
  const std::vector<TokenId> ids = read_json(folder_ / "ref_logits_mdn512.json").at("ids").get<std::vector<TokenId>>();
  std::ifstream file(folder_ / "ref_logits_mdn512.f16.npy", std::ios::binary);
  const std::string npy{std::istreambuf_iterator<char>(file), {}};
  for (const bool fast : {false, true}) {
    const LanguageModel model = load(folder_, {.fast = fast});
    constexpr std::size_t kRows = 64;
    const std::size_t count = kRows * model.vocabulary();
    ASSERT_GT(npy.size(), 2 * count);
    std::vector<Half> halves(count);
    std::memcpy(halves.data(), npy.data() + npy.size() - 2 * count, 2 * count);
    std::vector<float> wanted(count), logits(count);
    for (std::size_t i = 0; i < count; ++i) wanted[i] = from_half(halves[i]);
    Sequence sequence(model, {.context = 512, .cache = CacheKind::float32});
    sequence.append(std::span(ids).first(512 - kRows));
    sequence.append(std::span(ids).last(kRows), logits);
    const double worst = largest_difference(logits, wanted), error = relative_error(logits, wanted);
    std::printf("reference/lm fast %d: largest difference %.3g, relative %.3g\n", fast ? 1 : 0, worst, error);
    // The file itself is off by up to 0.1 from float64 (lm/decoder_test.cpp); int8 activations add as much again.
    EXPECT_LE(worst, fast ? 0.25 : 0.12);
    EXPECT_LE(error, fast ? 0.008 : 0.004);
  }
}

TEST_F(TrainedModelOnGpu, LogitsAreThoseOfFloat64AndContinuationsThoseOfTransformers) {
  constexpr std::pair<TokenId, double> kLogits[] = {{1108, 14.74189}, {6326, 13.80209}, {1945, 13.22989},
                                                    {335, 13.13185},  {6676, 12.96144}, {388, 11.5599}};
  const LanguageModel model = load(folder_, {.fast = false});
  {
    Sequence sequence(model, {.context = 64, .cache = CacheKind::float32});
    const std::span<const float> logits = sequence.append(std::vector<TokenId>{7256, 26, 199, 1918, 3652, 12});
    for (const auto& [id, wanted] : kLogits) {
      EXPECT_NEAR(static_cast<double>(logits[static_cast<std::size_t>(id)]), wanted, 1e-3) << id;
    }
  }
  const json reference = read_json(folder_ / "reference.json");
  for (const auto& [text, entry] : reference.items()) {
    if (!entry.is_object() || !entry.contains("last_logits_top")) continue;
    const auto ids = entry.at("ids").get<std::vector<TokenId>>(), all = entry.at("greedy").get<std::vector<TokenId>>();
    const std::vector<TokenId> wanted(all.begin() + static_cast<std::ptrdiff_t>(ids.size()), all.end());
    EXPECT_EQ(greedy(model, ids, wanted.size()), wanted) << text;
  }
}

/// The model of the repository: planned types, tokenizer and all.
TEST_F(GpuTest, PerplexityOfTheBundledModelIsThatOfTheHost) {
  const char* const given = std::getenv("IMAGO_MODEL");
  const fs::path path = given != nullptr ? fs::path(given) : fs::path(IMAGO_TEST_DATA) / "../../models/imago-20m.gguf";
  if (!fs::exists(path)) GTEST_SKIP() << "no model: " << path;
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "Shall I compare thee to a summer's day? Thou art more lovely and more temperate: number " +
            std::to_string(i * i) + ", and so the story goes on.\n";
  }
  const LanguageModel host = LanguageModel::load(path.string());
  const LanguageModel gpu = load(path), exact = load(path, {.fast = false});
  const double wanted = measure_perplexity(host, text, {.context = 128}).perplexity;
  const double fast = measure_perplexity(gpu, text, {.context = 128}).perplexity;
  const double slow = measure_perplexity(exact, text, {.context = 128}).perplexity;
  std::printf("perplexity: host %.5f, GPU %.5f, exact there %.5f\n", wanted, fast, slow);
  EXPECT_NEAR(fast, wanted, 0.01 * wanted);
  EXPECT_NEAR(slow, wanted, 0.01 * wanted);
  const DivergenceReport report = measure_divergence(exact, gpu, text, {.context = 128});
  std::printf("divergence of fast from exact: mean %.2e, same top %.4f\n", report.mean, report.same_top);
  EXPECT_LE(report.mean, 1e-2);
  EXPECT_EQ(gpu.type(), host.type());
  EXPECT_EQ(gpu.parameters(), host.parameters());
}

}  // namespace
}  // namespace imago
