// The pages show the programs as they are, and the programs run.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

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

}  // namespace
}  // namespace imago
