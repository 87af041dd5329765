// Batches of several sequences in pages of one cache: each gets what it would get alone.

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "imago/lm.h"
#include "testing/paged_sequences.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using testing::PagedSequences;

LanguageModel load(const char* name, bool fast) {
  const auto folder = testing::find_torch_model(name);
  if (!folder) throw std::runtime_error(testing::missing_torch_model(name));
  return LanguageModel::load(*folder,
                             {.type = fast ? std::optional<Format>(BlockFormat::q8_0) : std::nullopt, .fast = fast});
}

std::vector<TokenId> some_ids(const LanguageModel& model, std::size_t count, std::size_t seed) {
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < count; ++i)
    ids.push_back(static_cast<TokenId>((seed * 37 + i * 101 + i * i) % model.vocabulary()));
  return ids;
}

std::vector<TokenId> part(const std::vector<TokenId>& ids, std::size_t begin, std::size_t end) {
  return {ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::vector<float> alone(const LanguageModel& model, CacheKind kind, const std::vector<TokenId>& ids) {
  Sequence sequence(model, {.context = ids.size(), .cache = kind});
  const std::span<const float> logits = sequence.append(ids);
  return {logits.begin(), logits.end()};
}

void expect_alike(const std::vector<float>& a, const std::vector<float>& b, bool bit_for_bit = false) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], bit_for_bit ? 0 : 2e-5) << "logit " << i;
}

class Batches : public ::testing::TestWithParam<const char*> {};

// Bit for bit where the kernels promise it, which those of int8 activations do; exact products of many tokens add in
// another order than those of few.
TEST_P(Batches, MixPromptsAndSteps) {
  for (const bool fast : {false, true}) {
    const LanguageModel model = load(GetParam(), fast);
    const bool same = LanguageModelAccess::loaded(model).alike() == kernels::kAnyBatch;
    for (const CacheKind kind : {CacheKind::float32, CacheKind::float16}) {
      if (!same && kind == CacheKind::float16) continue;  // rounding makes large differences of small ones
      const std::vector<TokenId> a = some_ids(model, 150, 1), b = some_ids(model, 70, 2), c = some_ids(model, 9, 3);
      PagedSequences sequences(model, kind, 3, 3);
      sequences.run({{0, part(a, 0, 100), false}});
      auto made = sequences.run({{1, part(b, 0, 30), false}, {0, part(a, 100, 148)}, {2, part(c, 0, 7)}});
      expect_alike(made[0], alone(model, kind, part(a, 0, 148)), same);
      expect_alike(made[1], alone(model, kind, part(c, 0, 7)), same);
      // A step of each side of a piece of a prompt: rows that are read lie apart.
      made = sequences.run({{2, part(c, 7, 8)}, {1, part(b, 30, 69)}, {0, part(a, 148, 149)}});
      expect_alike(made[0], alone(model, kind, part(c, 0, 8)), same);
      expect_alike(made[1], alone(model, kind, part(b, 0, 69)), same);
      expect_alike(made[2], alone(model, kind, part(a, 0, 149)), same);
      made = sequences.run({{0, part(a, 149, 150)}, {1, part(b, 69, 70)}, {2, part(c, 8, 9)}});
      expect_alike(made[0], alone(model, kind, a), same);
      expect_alike(made[1], alone(model, kind, b), same);
      expect_alike(made[2], alone(model, kind, c), same);
    }
  }
}

TEST_P(Batches, StepsAreThoseOfEachAlone) {
  const LanguageModel model = load(GetParam(), false);
  const std::size_t count = LanguageModelAccess::loaded(model).alike() == kernels::kAnyBatch ? 20 : 12;
  ASSERT_GE(LanguageModelAccess::loaded(model).alike(), count);
  PagedSequences together(model, CacheKind::float16, count, 1), one_by_one(model, CacheKind::float16, count, 1);
  std::vector<PagedSequences::Piece> steps;
  for (std::size_t i = 0; i < count; ++i) {
    const std::vector<TokenId> ids = some_ids(model, 5 + i, i);
    together.run({{i, ids}});
    one_by_one.run({{i, ids}});
    steps.push_back({i, some_ids(model, 1, 50 + i)});
  }
  const auto made = together.run(steps);
  for (std::size_t i = 0; i < count; ++i) expect_alike(made[i], one_by_one.run({steps[i]})[0], true);
}

TEST_P(Batches, PagesAreCopied) {
  const LanguageModel model = load(GetParam(), false);
  const std::vector<TokenId> ids = some_ids(model, 101, 4);
  PagedSequences sequences(model, CacheKind::float16, 2, 2);
  sequences.run({{0, part(ids, 0, 100), false}});
  sequences.copy(0, 1, 90);
  expect_alike(sequences.run({{1, part(ids, 90, 101)}})[0], sequences.run({{0, part(ids, 100, 101)}})[0]);
}

INSTANTIATE_TEST_SUITE_P(Models, Batches,
                         ::testing::Values("llama3_rope_scaling_f16", "gemma2_softcap_f32", "qwen3_moe_f32"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace imago
