// Models whose weights change on the way to GGUF, against themselves in the other form.

#include <gtest/gtest.h>

#include "imago/lm.h"
#include "imago/models.h"
#include "imago/precision.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

TEST(OtherForm, HybridsComputeTheSame) {
  for (const char* name : {"falcon_h1_bf16", "nemotron_h_bf16"}) {
    const auto folder = testing::find_torch_model(name);
    if (!folder) GTEST_SKIP() << testing::missing_torch_model(name);
    SCOPED_TRACE(name);
    const testing::TempDir temp;
    const std::string gguf = (temp.path() / "model.gguf").string(), back = (temp.path() / "back").string() + "/";
    convert_model(*folder, gguf, {.type = DType::float32});
    convert_model(gguf, back, {.type = DType::float32});
    const ModelComparison comparison = compare_models(*folder, gguf);
    EXPECT_EQ(comparison.overall, 1);
    EXPECT_EQ(comparison.a.only, std::vector<std::string>());
    EXPECT_EQ(comparison.b.only, std::vector<std::string>());
    const std::vector<TokenId> ids = {1, 17, 200, 3, 99, 4, 4, 58, 250, 31, 7};
    const auto logits_of = [&](const std::string& path) {
      const LanguageModel model = LanguageModel::load(path, {.fast = false});
      Sequence sequence(model, {.context = 32, .cache = CacheKind::float32});
      std::vector<float> logits(ids.size() * model.vocabulary());
      sequence.append(ids, logits);
      return logits;
    };
    const std::vector<float> wanted = logits_of(*folder);
    for (const std::string& path : {gguf, back}) {
      const std::vector<float> got = logits_of(path);
      for (std::size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 2e-5) << path << " " << i;
    }
  }
}

}  // namespace
}  // namespace imago
