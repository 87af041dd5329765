#include "layering.h"

#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "testing/temp_dir.h"

namespace imago::layering {
namespace {

Architecture parse(const std::string& text) {
  std::istringstream lines(text);
  return read_architecture(lines);
}

const char* const kTower = "base : error.h\nnumeric base : format.h\nquant numeric : codec.h blocks.h\n";

/// Findings for a tree with the one file `name` that holds `text`.
Findings findings_for(const std::string& name, const std::string& text) {
  imago::testing::TempDir tree;
  tree.write("apps/cli/output.h", "");
  tree.write(name, text);
  return check_includes(tree.path(), parse(kTower));
}

/// Findings for a source of `module` that includes `target`, in the architecture of this very build.
Findings findings_in_this_build(const std::string& module, const std::string& target) {
  std::ifstream lines(IMAGO_MODULES_FILE);
  imago::testing::TempDir tree;
  tree.write("src/" + module + "/a.cpp", "#include \"" + target + "\"\n");
  return check_includes(tree.path(), read_architecture(lines));
}

TEST(Modules, SeeThemselvesAndEverythingBelow) {
  const Modules modules = parse(kTower).modules;
  EXPECT_EQ(modules.at("base"), (std::set<std::string>{"base"}));
  EXPECT_EQ(modules.at("quant"), (std::set<std::string>{"base", "numeric", "quant"}));
}

TEST(Modules, CyclesAndUnknownNamesAreErrors) {
  EXPECT_THROW(parse("a b\nb a\n"), std::runtime_error);
  EXPECT_THROW(parse("a nowhere\n"), std::runtime_error);
  EXPECT_THROW(parse("a : x.h\nb : x.h\n"), std::runtime_error);
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
  EXPECT_EQ(findings_for("src/base/b_test.cpp", "#include \"imago/codec.h\"\n"), Findings{}) << "links everything";
  EXPECT_EQ(findings_for("include/imago/codec.h",
                         "#include <vector>\n#include \"imago/format.h\"\n#include \"imago/blocks.h\"\n"),
            Findings{});
  EXPECT_EQ(findings_for("apps/cli/a.cpp",
                         "#include <unistd.h>\n#include <CLI/CLI.hpp>\n#include \"output.h\"\n"
                         "#include <nlohmann/json.hpp>\n#include \"imago/codec.h\"\n"),
            Findings{});
}

TEST(Includes, OnlyTheServerSeesSocketsAndTls) {
  const auto tree_with = [](const std::string& name, const std::string& text) {
    imago::testing::TempDir tree;
    tree.write("apps/server/listener.h", "");
    tree.write(name, text);
    return check_includes(tree.path(), parse(kTower)).size();
  };
  EXPECT_EQ(tree_with("apps/server/a.cpp", "#include <openssl/ssl.h>\n#include \"listener.h\"\n"), 0u);
  EXPECT_EQ(tree_with("apps/server/a_test.cpp", "#include <gtest/gtest.h>\n#include \"testing/temp_dir.h\"\n"), 0u);
  EXPECT_EQ(tree_with("apps/cli/serve.cpp", "#include \"server/listener.h\"\n"), 0u);
  EXPECT_EQ(tree_with("apps/cli/serve.cpp", "#include <openssl/ssl.h>\n"), 1u);
  EXPECT_EQ(tree_with("apps/server/a.cpp", "#include <CLI/CLI.hpp>\n"), 1u);
  EXPECT_EQ(tree_with("apps/server/a.cpp", "#include \"testing/temp_dir.h\"\n"), 1u) << "not a test";
  EXPECT_EQ(tree_with("apps/server/a.cpp", "#include \"base/cpu.h\"\n"), 1u);
}

TEST(Includes, ALowerModuleMustNotSeeAHigherOne) {
  EXPECT_EQ(findings_for("src/base/sub/a.cpp", "// first line\n  #  include \"quant/b.h\"\n"),
            Findings{"src/base/sub/a.cpp:2: quant/b.h: module 'base' may not see 'quant'"});
}

TEST(Includes, APublicHeaderCountsAsItsOwner) {
  EXPECT_EQ(
      findings_for("src/numeric/a.cpp", "#include \"imago/codec.h\"\n"),
      Findings{"src/numeric/a.cpp:1: imago/codec.h: module 'numeric' may not see 'quant', which owns the header"});
  EXPECT_EQ(findings_for("include/imago/format.h", "#include \"imago/codec.h\"\n").size(), 1u) << "headers too";
  EXPECT_EQ(findings_for("src/quant/a.cpp", "#include \"imago/stray.h\"\n").size(), 1u) << "nobody owns it";
  EXPECT_EQ(findings_for("include/imago/stray.h", "#include \"imago/error.h\"\n").size(), 1u) << "nobody owns it";
}

// Edges that earlier went unnoticed, since every module could include every public header.
TEST(Includes, UpwardEdgesOfThisProjectAreFound) {
  for (const auto& [module, target] : std::initializer_list<std::pair<const char*, const char*>>{
           {"layers", "imago/network.h"},  // layers do not know the network around them
           {"layers", "network/network_state.h"},
           {"files", "imago/models.h"},  // parsers know neither models …
           {"files", "models/traits.h"},
           {"files", "imago/network.h"},  // … nor networks (GGUF, safetensors) …
           {"files", "network/network_state.h"},
           {"files", "imago/train.h"},  // … nor training (datasets)
           {"files", "imago/files.h"},  // checkpoints are above them
           {"models", "imago/network.h"},
           {"network", "imago/train.h"},
#ifdef IMAGO_HAS_LM
           {"lm", "imago/network.h"},
           {"lm", "imago/files.h"},
           {"lm", "imago/train.h"},  // training and language models do not see each other
           {"train", "imago/lm.h"},
           {"jinja", "files/json.h"},
#endif
       }) {
    EXPECT_EQ(findings_in_this_build(module, target).size(), 1u) << module << " -> " << target;
  }
  EXPECT_EQ(findings_in_this_build("network", "imago/layer.h"), Findings{});
  EXPECT_EQ(findings_in_this_build("train", "imago/data.h"), Findings{});
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
