// The manual page: complete, and clean to those who check such pages.

#include "imago.h"
#include "testing/temp_dir.h"

namespace imago::testing {
namespace {

/// Names of the commands, as the help lists them.
std::vector<std::string> commands() {
  const std::string help = imago_run({"--help"}).out;
  std::vector<std::string> names;
  for (std::size_t at = help.find("\n  "); at != std::string::npos; at = help.find("\n  ", at + 1)) {
    const std::string name = help.substr(at + 3, help.find(' ', at + 3) - at - 3);
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos && name != "imago") {
      names.push_back(name);
    }
  }
  return names;
}

TEST(Man, HasEveryCommandAndOption) {
  const std::string page = imago_run({"man"}).out;
  const std::vector<std::string> names = commands();
  EXPECT_GE(names.size(), 12u);
  for (const std::string& name : names) {
    EXPECT_NE(page.find(".SS imago " + name + "\n"), std::string::npos) << name;
    EXPECT_NE(page.find("\\fBimago " + name), page.find(".B imago " + name)) << name;
  }
  for (const char* words : {".SH NAME", ".SH SYNOPSIS", ".SH ENVIRONMENT", ".SH EXIT STATUS", "IMAGO_KERNELS",
                            "\\fB\\-\\-granularity\\fR \\fItensor|row|block\\fR"}) {
    EXPECT_NE(page.find(words), std::string::npos) << words;
  }
}

TEST(Man, EveryCommandHasExamples) {
  for (const std::string& name : commands()) {
    const ProcessResult help = imago_run({name, "--help"});
    EXPECT_NE(help.out.find("\nExamples:\n"), std::string::npos) << name;
  }
}

TEST(Man, GroffHasNothingToSay) {
  if (run_process({"/bin/sh", "-c", "command -v groff"}).exit_code != 0) GTEST_SKIP() << "no groff here";
  const TempDir folder;
  folder.write("imago.1", imago_run({"man"}).out);
  const ProcessResult result = run_process(
      {"/bin/sh", "-c", "groff -k -man -ww -Tutf8 '" + (folder.path() / "imago.1").string() + "' 2>&1 >/dev/null"});
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace imago::testing
