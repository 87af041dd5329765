// The pages show the programs as they are, and the programs run.

#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "testing/loom_files.h"
#include "testing/process.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

/// Whether `page` shows all of `program` from its main on.
void expect_shown(const std::string& program, const std::string& page) {
  const std::string source = testing::read_text(IMAGO_SOURCE "/examples/" + program);
  const std::size_t start = source.find("int main(");
  ASSERT_NE(start, std::string::npos) << program;
  EXPECT_NE(testing::read_text(IMAGO_SOURCE "/docs/" + page).find(source.substr(start)), std::string::npos)
      << "docs/" << page << " does not show examples/" << program << " as it is";
}

TEST(Examples, StandOnTheirPages) {
  expect_shown("networks.cpp", "networks.md");
  expect_shown("weights.cpp", "api.md");
  expect_shown("files.cpp", "api.md");
  expect_shown("language_model.cpp", "api.md");
  expect_shown("metamorphosis.cpp", "metamorphosis.md");
}

TEST(WeightsExample, FewerBytesFurtherAway) {
  const testing::ProcessResult result = testing::run_process({IMAGO_EXAMPLES "/example_weights"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("float16   524288 bytes"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("q4_k      147456 bytes"), std::string::npos) << "256 · 1024 · 4.5 bits; " << result.out;
}

TEST(FilesExample, WritesConvertsAndExplains) {
  const testing::TempDir folder;
  const testing::ProcessResult result = testing::run_process({IMAGO_EXAMPLES "/example_files", folder.path().string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("matrix  Q4_K  18432 bytes"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("as expected: "), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("absent.gguf"), std::string::npos) << result.out;
}

TEST(LanguageModelExample, WritesAndCompares) {
  if (!IMAGO_HAS_LM) GTEST_SKIP() << "a build without language models";
  const std::string model = (testing::reference_folder() / "lm").string();
  if (!std::filesystem::exists(model)) GTEST_SKIP() << testing::missing_reference("lm");
  const testing::ProcessResult result = testing::run_process({IMAGO_EXAMPLES "/example_language_model", model});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\n16 tokens\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("same first choice at "), std::string::npos) << result.out;
}

/// A line "ffn q8_0  25.9 MiB  mean KL 0.00012  same first choice 99.1 %".
struct Step {
  std::string name;
  double mib = 0, mean = 0, same = 0;
};

std::vector<Step> steps_in(const std::string& text) {
  std::vector<Step> steps;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Step step;
    char name[17] = {};
    if (std::sscanf(line.c_str(), "%16c %lf MiB  mean KL %lf  same first choice %lf %%", name, &step.mib, &step.mean,
                    &step.same) != 4) {
      continue;
    }
    step.name = name;
    steps.push_back(step);
  }
  return steps;
}

TEST(MetamorphosisExample, PrintsTheFiguresOfItsPage) {
  if (!IMAGO_HAS_LM) GTEST_SKIP() << "a build without language models";
  const std::string model = (testing::reference_folder() / "lm").string();
  const std::string text = (testing::reference_folder() / "text/eval.txt").string();
  if (!std::filesystem::exists(model) || !std::filesystem::exists(text))
    GTEST_SKIP() << testing::missing_reference("lm");
#ifdef IMAGO_SANITIZED
  GTEST_SKIP() << "takes minutes under sanitizers; morph_test runs the same library there";
#endif
  const testing::TempDir folder;
  folder.write("text", testing::read_text(text).substr(0, 20000));
  const testing::ProcessResult result =
      testing::run_process({IMAGO_EXAMPLES "/example_metamorphosis", model, (folder.path() / "text").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("\n12 tokens more\n"), std::string::npos) << result.out;
  const std::vector<Step> steps = steps_in(result.out);
  const std::vector<Step> shown = steps_in(testing::read_text(IMAGO_SOURCE "/docs/metamorphosis.md"));
  ASSERT_EQ(steps.size(), 9u) << result.out;
  ASSERT_EQ(shown.size(), steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].name, shown[i].name);
    EXPECT_NEAR(steps[i].mib, shown[i].mib, 0.15) << steps[i].name;  // panels of other kernels are padded otherwise
    EXPECT_NEAR(steps[i].mean, shown[i].mean, 0.05 * shown[i].mean + 1e-5) << steps[i].name;
    EXPECT_NEAR(steps[i].same, shown[i].same, 1) << steps[i].name;
  }
  EXPECT_EQ(steps.front().mean, 0);
  EXPECT_EQ(steps.back().mean, 0) << "all is undone";
  EXPECT_EQ(steps[6].mean, steps[4].mean) << "undo";
}

}  // namespace
}  // namespace imago
