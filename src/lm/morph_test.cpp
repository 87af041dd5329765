// Matrices that change their types while the model lives, for every architecture: against models loaded that way.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/lm.h"
#include "lm/matrix_encoder.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

namespace fs = std::filesystem;
using models::MatrixKey;
using models::Role;

constexpr Format kQ8 = BlockFormat::q8_0, kQ4 = BlockFormat::q4_0;

const std::vector<TokenId> kIds = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

std::vector<float> next_logits(Sequence& sequence, const std::vector<TokenId>& ids) {
  const std::span<const float> logits = sequence.append(ids);
  return {logits.begin(), logits.end()};
}

std::vector<float> all_logits(const LanguageModel& model) {
  Sequence sequence(model, {.context = kIds.size(), .cache = CacheKind::float32});
  std::vector<float> logits(kIds.size() * model.vocabulary());
  sequence.append(kIds, logits);
  return logits;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

std::map<std::string, std::string> types(const LanguageModel& model) {
  std::map<std::string, std::string> found;
  for (const ModelMatrix& matrix : model.matrices()) found[matrix.name + " " + matrix.role] = matrix.type.name();
  return found;
}

bool is_ffn(const MatrixKey& key) { return key.role == Role::gate || key.role == Role::up || key.role == Role::down; }
bool in_block(const MatrixKey& key) {
  return key.role != Role::token_embedding && key.role != Role::output && key.role != Role::position_embedding;
}

class MorphModel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto folder = testing::find_torch_model(GetParam());
    if (!folder) GTEST_SKIP() << testing::missing_torch_model(GetParam());
    folder_ = *folder;
  }
  LanguageModel load(const LanguageModelOptions& options = {}) const { return LanguageModel::load(folder_, options); }
  /// With matrices packed here: type_of(key) is their block format, or none to keep them.
  template <class TypeOf>
  LanguageModel load_with(TypeOf type_of) const {
    return lm::load_encoded(folder_, {},
                            [&](const MatrixKey& key, std::span<const float> weights, std::size_t, std::size_t) {
                              const std::optional<Format> type = type_of(key);
                              std::optional<lm::EncodedWeights> encoded;
                              if (!type) return encoded;
                              const std::size_t bytes = packed_bytes(*type, weights.size());
                              encoded = lm::EncodedWeights{.format = *type, .packed = host_device()->allocate(bytes)};
                              encode(*type, weights, {}, encoded->packed.host());
                              return encoded;
                            });
  }

  std::string folder_;
};

TEST_P(MorphModel, ComputesWhatTheModelLoadedInThatTypeDoes) {
  for (const bool fast : {true, false}) {
    LanguageModel model = load({.fast = fast});
    const std::vector<float> before = all_logits(model);
    const std::map<std::string, std::string> types_before = types(model);
    const std::uint64_t bytes_before = model.bytes();
    constexpr Format kTypes[] = {kQ8, kQ4, DType::int8, DType::float16};
    for (const Format type : kTypes) {
      const LanguageModel loaded = load({.type = type, .fast = fast});
      const MorphedMatrices report = model.morph(".", type);
      EXPECT_EQ(report.bytes_after, model.bytes());
      EXPECT_EQ(types(model), types(loaded)) << type.name();
      EXPECT_EQ(model.type(), loaded.type());
      EXPECT_EQ(model.bytes(), loaded.bytes());
      EXPECT_TRUE(same_bits(all_logits(model), all_logits(loaded))) << type.name();
    }
    while (types(model) != types_before) EXPECT_EQ(model.undo().encoded, 0u) << "replaced versions are kept";
    EXPECT_EQ(model.bytes(), bytes_before);
    EXPECT_TRUE(same_bits(all_logits(model), before));
    EXPECT_EQ(model.morph(".", kQ4).encoded, 0u) << "kept, too";
    EXPECT_TRUE(same_bits(all_logits(model), all_logits(load({.type = kQ4, .fast = fast}))));
  }
}

TEST_P(MorphModel, RolesBlocksAndNamesMeanTheirMatrices) {
  LanguageModel model = load();
  const std::vector<float> before = all_logits(model);
  model.morph("ffn", kQ4);
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(load_with([](const MatrixKey& key) {
                          return is_ffn(key) ? std::optional(kQ4) : std::nullopt;
                        }))));
  const MorphedMatrices block = model.morph("blk.1", kQ8);
  for (const std::string& name : block.changed) EXPECT_TRUE(name.starts_with("blk.1.")) << name;
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(load_with([](const MatrixKey& key) {
                          return in_block(key) && key.block == 1 ? std::optional(kQ8)
                                 : is_ffn(key)                   ? std::optional(kQ4)
                                                                 : std::nullopt;
                        }))));
  model.undo();
  model.undo();
  EXPECT_TRUE(same_bits(all_logits(model), before));
  // The other matrix of a gated pair keeps its type, but not necessarily its arithmetic.
  model.morph("up", kQ8);
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(load_with([](const MatrixKey& key) {
                          return key.role == Role::up ? std::optional(kQ8) : std::nullopt;
                        }))));
  model.undo();
  // A tied output is the embedding as well.
  model.morph("output", kQ8);
  const bool tied = types(model).count("output.weight output") == 0;
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(load_with([&](const MatrixKey& key) {
                          return key.role == (tied ? Role::token_embedding : Role::output) ? std::optional(kQ8)
                                                                                           : std::nullopt;
                        }))));
  model.undo();
  model.morph("^token_embd", kQ8);
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(load_with([](const MatrixKey& key) {
                          return key.role == Role::token_embedding ? std::optional(kQ8) : std::nullopt;
                        }))));
}

TEST_P(MorphModel, ASequenceUnderWayGoesOn) {
  LanguageModel model = load();
  std::size_t blocks = 0;
  for (const ModelMatrix& matrix : model.matrices()) blocks += matrix.role == "down" ? 1 : 0;
  const std::string last = "blk\\." + std::to_string(blocks - 1) + "\\.ffn_";
  Sequence sequence(model, {.context = 20});
  sequence.append(kIds);
  // Keys and values do not depend on the feed-forward layer of the last block.
  model.morph(last, kQ8);
  const LanguageModel loaded = load_with(
      [&](const MatrixKey& key) { return is_ffn(key) && key.block == blocks - 1 ? std::optional(kQ8) : std::nullopt; });
  Sequence from_start(loaded, {.context = 20});
  from_start.append(kIds);
  EXPECT_TRUE(same_bits(next_logits(sequence, {7}), next_logits(from_start, {7})));
  model.undo();
  const LanguageModel never = load();
  Sequence untouched(never, {.context = 20});
  untouched.append(kIds);
  untouched.append(std::vector<TokenId>{7});
  EXPECT_TRUE(same_bits(next_logits(sequence, {8, 9}), next_logits(untouched, {8, 9})));
}

INSTANTIATE_TEST_SUITE_P(All, MorphModel, ::testing::ValuesIn(testing::kTorchModels),
                         [](const auto& one) { return std::string(one.param); });

class Morph : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto folder = testing::find_torch_model("qwen3_moe_f32");
    if (!folder) GTEST_SKIP() << testing::missing_torch_model("qwen3_moe_f32");
    fs::copy(*folder, folder_.path() / "model");
    path_ = (folder_.path() / "model").string();
  }

  testing::TempDir folder_;
  std::string path_;
};

void expect_refused(LanguageModel& model, const std::string& pattern, const std::string& text) {
  try {
    model.morph(pattern, kQ4);
    ADD_FAILURE() << pattern << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST_F(Morph, RefusesWhatMatchesNothing) {
  LanguageModel model = LanguageModel::load(path_);
  const auto before = types(model);
  expect_refused(model, "fnn", "no matrix matches 'fnn'; a pattern is a role (ffn, ");
  expect_refused(model, "blk.7", "a block (blk.0 to blk.1)");
  expect_refused(model, "(", "'(' is not a regular expression");
  expect_refused(model, "router", "norms and routers keep their types");
  expect_refused(model, "ffn_gate_inp", "routers keep their types");
  expect_refused(model, "attention_norm", "norms");
  EXPECT_THROW(model.undo(), UsageError);
  EXPECT_EQ(types(model), before);
}

TEST_F(Morph, RowsThatDoNotFitTakeSmallerBlocks) {
  LanguageModel model = LanguageModel::load(path_);
  const MorphedMatrices report = model.morph("ffn", BlockFormat::q4_k);  // rows of 64 in blocks of 256
  EXPECT_EQ(report.misfits.size(), 6u) << "gate, up and down of 2 blocks, all experts together";
  EXPECT_EQ(report.changed, report.misfits);
  for (const ModelMatrix& matrix : model.matrices()) {
    const bool misfit = std::ranges::find(report.misfits, matrix.name) != report.misfits.end();
    EXPECT_EQ(matrix.type.name(), misfit ? "q5_0" : "float32") << matrix.name << ", as imago morph chooses";
  }
}

TEST_F(Morph, ListsTypesAndBytes) {
  LanguageModel model = LanguageModel::load(path_);
  model.morph("query", kQ8);
  std::uint64_t sum = 0, weights = 0;
  for (const ModelMatrix& matrix : model.matrices()) {
    EXPECT_EQ(matrix.type.name(), matrix.role == "query" ? "q8_0" : "float32") << matrix.name;
    EXPECT_EQ(matrix.name.find("inp"), std::string::npos) << "no router";
    if (matrix.role != "token_embedding") sum += matrix.bytes;
    weights += matrix.weights;
    EXPECT_GE(8 * matrix.bytes, matrix.weights * (matrix.role == "query" ? 8u : 32u));
  }
  EXPECT_LT(weights, model.parameters());
  EXPECT_GT(10 * weights, 9 * model.parameters());
  EXPECT_LE(sum, model.bytes());
  EXPECT_GT(sum + sum / 20, model.bytes()) << "all but routers";
}

TEST_F(Morph, VersionsThatHaveNoRoomAreMadeAgain) {
  LanguageModel model = LanguageModel::load(path_, {.kept_bytes = 0});
  const std::vector<float> before = all_logits(model);
  EXPECT_GT(model.morph("attention", kQ8).encoded, 0u);
  const std::vector<float> morphed = all_logits(model);
  EXPECT_EQ(model.undo().encoded, 8u) << "query, key, value and output of 2 blocks";
  EXPECT_TRUE(same_bits(all_logits(model), before));
  EXPECT_EQ(model.morph("attention", kQ8).encoded, 8u);
  EXPECT_TRUE(same_bits(all_logits(model), morphed));

  // Room for some: the versions replaced last.
  LanguageModel roomy = LanguageModel::load(path_, {.kept_bytes = 40000});
  roomy.morph("attention", kQ8);
  const std::size_t encoded = roomy.undo().encoded;
  EXPECT_GT(encoded, 0u);
  EXPECT_LT(encoded, 8u);
  EXPECT_TRUE(same_bits(all_logits(roomy), before));
}

TEST_F(Morph, FailureLeavesTheTypesFromBefore) {
  for (const std::uint64_t kept : {std::uint64_t{0}, std::uint64_t{1} << 30}) {
    LanguageModel model = LanguageModel::load(path_, {.kept_bytes = kept});
    const std::vector<float> before = all_logits(model);
    const auto types_before = types(model);
    EXPECT_THROW(model.morph("ffn", kQ4,
                             [](std::uint64_t done, std::uint64_t) {
                               if (done == 5) throw IoError("disk", "gone");
                             }),
                 IoError);
    EXPECT_EQ(types(model), types_before);
    EXPECT_TRUE(same_bits(all_logits(model), before));
    EXPECT_THROW(model.undo(), UsageError);
  }
}

TEST_F(Morph, AnEagerModelOpensItsFileAgain) {
  LanguageModel model = LanguageModel::load(path_, {.eager = true});
  model.morph("ffn", kQ8);
  LanguageModel mapped = LanguageModel::load(path_);
  mapped.morph("ffn", kQ8);
  EXPECT_TRUE(same_bits(all_logits(model), all_logits(mapped)));
  const std::vector<float> before = all_logits(model);
  std::fstream file(path_ + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);
  file.write("\0\0\0\0", 4);
  file.close();
  EXPECT_THROW(model.morph("attention", kQ8), FormatError) << "another model by now";
  fs::remove_all(path_);
  EXPECT_THROW(model.morph("attention", kQ8), IoError);
  EXPECT_TRUE(same_bits(all_logits(model), before));
}

}  // namespace
}  // namespace imago
