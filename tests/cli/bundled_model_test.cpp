// Which model runs when none is named.

#include <filesystem>

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

namespace fs = std::filesystem;

/// The program in an install prefix of its own, with or without a model beside it.
class Installed : public ::testing::Test {
 protected:
  Installed() {
    fs::create_directories(prefix_.path() / "bin");
    fs::create_directories(prefix_.path() / "share/imago");
    fs::copy_file(IMAGO_PROGRAM, program());
    EXPECT_EQ(imago_run({"synth", stand_in(), "--type", "f32", "--width", "32", "--blocks", "1", "--feed-forward", "64",
                         "--heads", "2", "--kv-heads", "2", "--vocabulary", "512", "--ctx", "64", "-q"})
                  .exit_code,
              0);
  }
  std::string program() const { return (prefix_.path() / "bin/imago").string(); }
  std::string stand_in() const { return (prefix_.path() / "stand-in.gguf").string(); }
  void bundle() const { fs::copy_file(stand_in(), prefix_.path() / "share/imago/imago-20m.gguf"); }

  ProcessResult run(std::vector<std::string> arguments, const std::string& model = "") const {
    arguments.insert(arguments.begin(), program());
    return run_process(arguments, {.environment = {{"IMAGO_MODEL", model}}});
  }

  TempDir prefix_;
};

TEST_F(Installed, UsesTheModelInShare) {
  bundle();
  EXPECT_EQ(run({"tokenize", "-p", "ab"}).exit_code, 0);
  EXPECT_EQ(run({"run", "-p", "ab", "-n", "2"}).exit_code, 0);
  EXPECT_EQ(run({"logits", "--ids", "1", "-o", (prefix_.path() / "l.safetensors").string()}).exit_code, 0);
  const ProcessResult bench = run({"bench", "-p", "8", "-n", "2", "-r", "1", "--json"});
  EXPECT_EQ(expect_json(bench).at("model"), (prefix_.path() / "share/imago/imago-20m.gguf").string());
}

TEST_F(Installed, PrefersWhatIsNamed) {
  bundle();
  expect_error(run({"run", "-p", "a"}, "/nowhere.gguf"), 1, "/nowhere.gguf");
  EXPECT_EQ(run({"run", stand_in(), "-p", "a", "-n", "1"}, "/nowhere.gguf").exit_code, 0);
  EXPECT_EQ(run({"run", "-m", stand_in(), "-p", "a", "-n", "1"}, "/nowhere.gguf").exit_code, 0);
  EXPECT_EQ(run({"tokenize", "-p", "a"}, stand_in()).exit_code, 0);
}

TEST_F(Installed, SaysWhereItLookedWhenThereIsNone) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"run", "-p", "a"}, {"chat"}, {"tokenize", "-p", "a"}, {"bench"}}) {
    const ProcessResult result = run(arguments);
    expect_error(result, 2, "no MODEL given; name a GGUF file or a Hugging Face folder, or set IMAGO_MODEL");
    EXPECT_NE(result.err.find((prefix_.path() / "share/imago/imago-20m.gguf").string()), std::string::npos);
  }
}

}  // namespace
}  // namespace imago::testing
