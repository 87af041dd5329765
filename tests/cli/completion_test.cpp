// Shell completion, asked as a shell asks it. zsh and fish only read their scripts here, where they are installed.

#include <cstdlib>
#include <sstream>

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

using Words = std::vector<std::string>;

bool installed(const std::string& shell) {
  return run_process({"/bin/sh", "-c", "command -v " + shell}).exit_code == 0;
}

/// A file with the script of `shell`.
class Script {
 public:
  explicit Script(const std::string& shell) {
    const ProcessResult result = imago_run({"completion", shell});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    folder_.write("script", result.out);
  }
  std::string path() const { return (folder_.path() / "script").string(); }
  std::string folder() const { return folder_.path().string(); }

 private:
  TempDir folder_;
};

/// What bash offers for the last of these words.
Words bash_offers(const Script& script, const Words& words) {
  std::string line = "source '" + script.path() + "'; COMP_WORDS=(imago";
  for (const std::string& word : words) line += " '" + word + "'";
  line += "); COMP_CWORD=" + std::to_string(words.size()) + "; _imago; printf '%s\\n' \"${COMPREPLY[@]}\"";
  const ProcessResult result = run_process({"/bin/bash", "-c", "cd '" + script.folder() + "'; " + line});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out);
  Words offers;
  for (std::string offer; std::getline(lines, offer);) {
    if (!offer.empty()) offers.push_back(offer);
  }
  return offers;
}

bool has(const Words& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

TEST(BashCompletion, OffersCommandsOptionsTypesAndFiles) {
  if (!installed("bash")) GTEST_SKIP() << "no bash here";
  const Script script("bash");
  EXPECT_EQ(bash_offers(script, {"doc"}), Words{"doctor"});
  for (const char* command : {"inspect", "morph", "train", "completion"}) {
    EXPECT_TRUE(has(bash_offers(script, {""}), command)) << command;
  }
  EXPECT_EQ(bash_offers(script, {"morph", "--gran"}), Words{"--granularity"});
  EXPECT_EQ(bash_offers(script, {"morph", "a", "b", "--to", "q5_"}), (Words{"q5_0", "q5_1", "q5_k"}));
  EXPECT_EQ(bash_offers(script, {"train", "--optimizer", "adam"}), (Words{"adam", "adamw"}));
  EXPECT_EQ(bash_offers(script, {"train", "--optimizer", "=", "s"}), Words{"sgd"});
  EXPECT_EQ(bash_offers(script, {"completion", ""}), (Words{"bash", "zsh", "fish"}));
  EXPECT_EQ(bash_offers(script, {"help", "insp"}), Words{"inspect"});
  EXPECT_EQ(bash_offers(script, {"inspect", "scr"}), Words{"script"}) << "the file in this folder";
  EXPECT_EQ(bash_offers(script, {"train", "--data", "scr"}), Words{"script"});
  EXPECT_EQ(bash_offers(script, {"train", "--epochs", ""}), Words{}) << "nothing can be said about a number";
}

TEST(ZshCompletion, IsReadWithoutComplaint) {
  if (!installed("zsh")) GTEST_SKIP() << "no zsh here";
  const Script script("zsh");
  EXPECT_EQ(run_process({"/bin/sh", "-c", "zsh -n '" + script.path() + "'"}).err, "");
  const ProcessResult loaded =
      run_process({"/bin/sh", "-c",
                   "zsh -f -c 'autoload -Uz compinit; compinit -u -D; source \"$0\"; print $_comps[imago]' '" +
                       script.path() + "'"});
  EXPECT_EQ(loaded.out, "_imago\n") << loaded.err;
}

TEST(FishCompletion, OffersCommandsOptionsAndTypes) {
  if (!installed("fish")) GTEST_SKIP() << "no fish here";
  const Script script("fish");
  EXPECT_EQ(run_process({"/bin/sh", "-c", "fish --no-execute '" + script.path() + "'"}).err, "");
  const auto offers = [&](const std::string& line) {
    return run_process({"/bin/sh", "-c",
                        "fish -c 'source $argv[1]; complete -C$argv[2]' '" + script.path() + "' '" + line + "'"})
        .out;
  };
  EXPECT_TRUE(offers("imago doc").starts_with("doctor\t"));
  EXPECT_TRUE(offers("imago morph --gran").starts_with("--granularity\t"));
  EXPECT_NE(offers("imago morph --to q5_").find("q5_k\t"), std::string::npos);
}

TEST(Completion, OfAnotherShellIsAMistake) {
  expect_error(imago_run({"completion", "tcsh"}), 2, "no completion for 'tcsh'; use bash, zsh or fish");
  expect_error(imago_run({"completion"}), 2, "SHELL");
}

}  // namespace
}  // namespace imago::testing
