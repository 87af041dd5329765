#include <set>

#include "imago.h"
#include "imago/system.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

/// bench kernels on small matrices: the form is tested here, not the speed.
ProcessResult quick(const Words& more, const std::string& kernels = "") {
  Words arguments{"bench", "kernels", "--mib", "1", "--seconds", "0.001"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return imago_run(arguments, {.environment = {{"IMAGO_KERNELS", kernels}, {"TERM", "xterm"}}});
}

TEST(BenchKernels, JsonIsAsPromised) {
  const Json report = expect_json(quick({"--json", "--format", "q4_0", "--format=BF16", "-t", "2"}));
  EXPECT_EQ(report.at("version"), version());
  EXPECT_EQ(report.at("threads"), 2);
  EXPECT_TRUE(report.at("cpu").is_string());
  EXPECT_GT(report.at("read_gb_per_s").get<double>(), 0.0);
  EXPECT_GT(report.at("float32_peak_gflops").get<double>(), 0.0);
  EXPECT_GT(report.at("int8_peak_gops").get<double>(), 0.0);
  EXPECT_GE(report.at("bfloat16_peak_gflops").get<double>(), 0.0);
  const Json& kernels = report.at("kernels");
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0].at("format"), "q4_0");
  EXPECT_EQ(kernels[0].at("activation"), "f32");
  EXPECT_EQ(kernels[1].at("format"), "q4_0");
  EXPECT_EQ(kernels[1].at("activation"), "int8");
  EXPECT_EQ(kernels[2].at("format"), "bfloat16");
  EXPECT_EQ(kernels[2].at("activation"), "f32");
  for (const Json& kernel : kernels) {
    EXPECT_TRUE(kernel.at("name").get<std::string>().starts_with(kernel.at("format").get<std::string>() + "/"));
    EXPECT_EQ(kernel.at("op"), "matvec");
    EXPECT_EQ(kernel.at("batch"), 1);
    EXPECT_EQ(kernel.at("cols"), 4096);
    EXPECT_GT(kernel.at("rows").get<int>(), 0);
    EXPECT_GT(kernel.at("gflops").get<double>(), 0.0);
    const double share = kernel.at("gb_per_s").get<double>() / kernel.at("read_gb_per_s").get<double>();
    EXPECT_NEAR(kernel.at("fraction_of_read").get<double>(), share, 1e-9 * share);
    EXPECT_GT(kernel.at("fraction_of_peak").get<double>(), 0.0);
    EXPECT_GE(kernel.at("spread").get<double>(), 0.0);
  }
}

TEST(BenchKernels, CoversEveryTypeInEveryForm) {
  const Json report = expect_json(quick({"--json"}));
  std::set<std::string> exact, fast;
  for (const Json& kernel : report.at("kernels")) {
    (kernel.at("activation") == "f32" ? exact : fast).insert(kernel.at("format").get<std::string>());
  }
  const Json types = expect_json(imago_run({"dtypes", "--json"})).at("types");
  std::set<std::string> all, narrow;
  for (const Json& type : types) {
    all.insert(type.at("name").get<std::string>());
    if (type.at("kind") == "block" || type.at("bits") <= 8) narrow.insert(type.at("name").get<std::string>());
  }
  EXPECT_EQ(exact, all);
  EXPECT_EQ(fast, narrow);
}

TEST(BenchKernels, ABatchIsAMatrixProductWithinTheKernelLimit) {
  const Json report = expect_json(quick({"--json", "--format", "int8", "--batch", "5"}, "ref"));
  ASSERT_EQ(report.at("kernels").size(), 2u);
  for (const Json& kernel : report.at("kernels")) {
    EXPECT_EQ(kernel.at("name"), "int8/ref");
    EXPECT_EQ(kernel.at("op"), "matmul");
    EXPECT_EQ(kernel.at("batch"), 5);
  }
  expect_error(quick({"--json"}, "sse9"), 2, "IMAGO_KERNELS is 'sse9'");
}

TEST(BenchKernels, TextGroupsByActivationsAndSaysWhatTheShareIsOf) {
  const ProcessResult one = quick({"--format", "q4_0"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_EQ(one.err, "") << "progress without a terminal";
  for (const char* words : {"memory reads ", "Exact: float32 activations, one token\n",
                            "Fast: int8 activations, one token\n", "of read", "q4_0/"}) {
    EXPECT_NE(one.out.find(words), std::string::npos) << words << " is missing from\n" << one.out;
  }
  const ProcessResult two = quick({"--format", "float32", "--batch", "2", "--quiet"});
  EXPECT_EQ(two.err, "");
  EXPECT_NE(two.out.find("Exact: float32 activations, 2 tokens\n"), std::string::npos) << two.out;
  EXPECT_NE(two.out.find("of peak"), std::string::npos) << two.out;
  EXPECT_EQ(two.out.find("Fast"), std::string::npos) << "float32 has no such form\n" << two.out;
}

TEST(BenchKernels, MistakesAreTold) {
  expect_error(imago_run({"bench"}, {.environment = {{"IMAGO_MODEL", "/nowhere.gguf"}}}), 1, "/nowhere.gguf");
  expect_error(imago_run({"bench", "kernel"}), 2, "there is no file 'kernel'; 'imago bench kernels' measures");
  expect_error(imago_run({"bench", "kernels", "--format", "q9_9"}), 2, "q9_9");
  expect_error(imago_run({"bench", "kernels", "more"}), 2, "unexpected argument 'more'");
  for (const char* batch : {"0", "-1", "many", "65537"}) {
    expect_error(imago_run({"bench", "kernels", "--batch", batch}), 2, "--batch");
  }
  expect_error(imago_run({"bench", "kernels", "-t", "1025"}), 2, "--threads");
  expect_error(imago_run({"bench", "kernels", "--seconds", "-1"}), 2, "--seconds");
}

}  // namespace
}  // namespace imago::testing
