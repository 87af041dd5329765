#include "layering.h"

#include <gtest/gtest.h>

#include <sstream>
#include <stdexcept>

#include "testing/temp_dir.h"

namespace imago::layering {
namespace {

Modules modules_of(const std::string& text) {
  std::istringstream lines(text);
  return read_modules(lines);
}

const char* const kTower = "base\nnumeric base\nquant numeric\n";

/// Findings for a tree with the one file `name` that holds `text`.
Findings findings_for(const std::string& name, const std::string& text) {
  imago::testing::TempDir tree;
  tree.write("apps/cli/output.h", "");
  tree.write(name, text);
  return check_includes(tree.path(), modules_of(kTower));
}

TEST(Modules, SeeThemselvesAndEverythingBelow) {
  const Modules modules = modules_of(kTower);
  EXPECT_EQ(modules.at("base"), (std::set<std::string>{"base"}));
  EXPECT_EQ(modules.at("quant"), (std::set<std::string>{"base", "numeric", "quant"}));
}

TEST(Modules, CyclesAndUnknownNamesAreErrors) {
  EXPECT_THROW(modules_of("a b\nb a\n"), std::runtime_error);
  EXPECT_THROW(modules_of("a nowhere\n"), std::runtime_error);
}

TEST(Includes, WhatIsAllowedPasses) {
  EXPECT_EQ(findings_for("src/quant/a.cpp",
                         "#include <sched.h>\n#include <fmt/format.h>\n#include \"base/b.h\"\n"
                         "#include \"quant/c.h\"\n#include \"imago/format.h\"\n"),
            Findings{});
  EXPECT_EQ(findings_for("src/base/a_test.cpp", "#include \"testing/process.h\"\n"), Findings{});
  EXPECT_EQ(findings_for("src/base/cuda/a_test.cpp", "#include \"networks/every_layer.h\"\n"), Findings{});
  EXPECT_EQ(findings_for("src/base/cuda/gpu_samples.h", "#include \"testing/random_values.h\"\n"), Findings{});
  EXPECT_EQ(findings_for("src/quant/cuda/a.cu", "#include <cuda_runtime.h>\n#include \"base/cuda/b.cuh\"\n"),
            Findings{});
  EXPECT_EQ(findings_for("include/imago/a.h", "#include <vector>\n#include \"imago/b.h\"\n"), Findings{});
  EXPECT_EQ(findings_for("apps/cli/a.cpp",
                         "#include <unistd.h>\n#include <CLI/CLI.hpp>\n#include \"output.h\"\n"
                         "#include <nlohmann/json.hpp>\n#include \"imago/system.h\"\n"),
            Findings{});
}

TEST(Includes, ALowerModuleMustNotSeeAHigherOne) {
  EXPECT_EQ(findings_for("src/base/sub/a.cpp", "// first line\n  #  include \"quant/b.h\"\n"),
            Findings{"src/base/sub/a.cpp:2: quant/b.h: module 'base' may not see 'quant'"});
}

TEST(Includes, EachKindOfViolationIsFound) {
  EXPECT_EQ(findings_for("src/base/a.cpp", "#include \"b.h\"\n").size(), 1u) << "not named by its path";
  EXPECT_EQ(findings_for("src/base/a.cpp", "#include \"testing/process.h\"\n").size(), 1u) << "not a test";
  EXPECT_EQ(findings_for("src/base/cuda/a.cu", "#include \"quant/cuda/b.cuh\"\n").size(), 1u) << "a higher module";
  EXPECT_EQ(findings_for("src/base/a.cpp", "#include \"cli/output.h\"\n").size(), 1u) << "nothing sees apps";
  EXPECT_EQ(findings_for("src/stray/a.cpp", "#include \"base/b.h\"\n").size(), 1u) << "no such module";
  EXPECT_EQ(findings_for("include/imago/a.h", "#include \"base/b.h\"\n").size(), 1u);
  EXPECT_EQ(findings_for("include/imago/a.h", "#include <fmt/format.h>\n").size(), 1u);
  EXPECT_EQ(findings_for("include/imago/a.h", "#include <unistd.h>\n").size(), 1u);
  EXPECT_EQ(findings_for("apps/cli/a.cpp", "#include \"base/cpu.h\"\n").size(), 1u);
  EXPECT_EQ(findings_for("apps/cli/a.cpp", "#include <gtest/gtest.h>\n").size(), 1u);
}

TEST(Sizes, LongFilesAreListedAndTooLongOnesFail) {
  imago::testing::TempDir tree;
  const auto lines = [](std::size_t count) { return std::string(count, '\n'); };
  tree.write("src/base/short.cpp", lines(kLongFile));
  tree.write("src/base/long.cpp", lines(kLongestFile));
  tree.write("tests/endless.cpp", lines(kLongestFile + 1));
  const Sizes sizes = check_sizes(tree.path());
  EXPECT_EQ(sizes.long_ones, Findings{"src/base/long.cpp: 800 lines"});
  EXPECT_EQ(sizes.too_long, Findings{"tests/endless.cpp: 801 lines"});
}

}  // namespace
}  // namespace imago::layering
