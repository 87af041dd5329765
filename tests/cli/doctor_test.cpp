#include <map>

#include "imago.h"
#include "imago/device.h"
#include "imago/system.h"

namespace imago::testing {
namespace {

using Json = nlohmann::json;

/// IMAGO_KERNELS as given, whatever the environment of the test says.
ProcessOptions kernels(const std::string& limit) { return {.environment = {{"IMAGO_KERNELS", limit}}}; }

TEST(Doctor, JsonHoldsTheWholeReport) {
  const Json report = expect_json(imago_run({"doctor", "--json", "-t", "2"}, kernels("")));
  EXPECT_EQ(report.at("version"), version());
  EXPECT_TRUE(report.at("cpu").at("model").is_string());
  EXPECT_TRUE(report.at("cpu").at("features").is_array());
  EXPECT_TRUE(report.at("cpu").at("absent_features").is_array());
  EXPECT_GE(report.at("cpu").at("usable_cores").get<int>(), 1);
  EXPECT_GE(report.at("cpu").at("cores").get<int>(), report.at("cpu").at("usable_cores").get<int>());
  EXPECT_GE(report.at("cpu").at("load").get<double>(), 0.0);
  EXPECT_EQ(report.at("threads"), 2);
  EXPECT_GT(report.at("memory").at("bytes").get<std::uint64_t>(), 0u);
  EXPECT_EQ(report.at("memory").at("cache_bytes").size(), 3u);
  EXPECT_TRUE(report.at("memory").at("huge_pages").is_boolean());
  EXPECT_GT(report.at("memory").at("read_gb_per_s").get<double>(), 0.0);
  EXPECT_TRUE(report.at("kernel_limit").is_null());
  const std::vector<DeviceInfo> gpus = accelerators();
  ASSERT_EQ(report.at("gpus").size(), gpus.size());
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    const Json& gpu = report.at("gpus").at(i);
    EXPECT_EQ(gpu.at("name"), gpus[i].name);
    EXPECT_EQ(gpu.at("model"), gpus[i].model);
    EXPECT_EQ(gpu.at("bytes"), gpus[i].memory);
    EXPECT_GT(gpu.at("copy_gb_per_s").get<double>(), 1.0);
  }
  EXPECT_EQ(report.at("gpu_problem"), gpus.empty() ? Json(accelerator_problem()) : Json(nullptr));
  EXPECT_TRUE(report.at("advice").is_array());
  ASSERT_FALSE(report.at("models").empty());
  for (const Json& model : report.at("models")) {
    // Reading all weights once takes as long as memory says.
    EXPECT_NEAR(model.at("tokens_per_second_at_most").get<double>() * model.at("bytes").get<double>(),
                report.at("memory").at("read_gb_per_s").get<double>() * 1e9,
                1e3 * model.at("billion_weights").get<double>() * 1e3);
  }
  std::map<std::string, int> formats_of;
  for (const Json& choice : report.at("kernels")) {
    ++formats_of[choice.at("operation").get<std::string>()];
    EXPECT_TRUE(choice.at("kernel").get<std::string>().starts_with(choice.at("format").get<std::string>() + "/"));
  }
  for (const char* operation : {"encode", "decode", "matvec exact"}) EXPECT_GE(formats_of[operation], 21 + 16);
  EXPECT_GE(formats_of["matvec fast"], 11 + 16) << "types of 8 bits and fewer and all block formats";
}

TEST(Doctor, RespectsTheKernelLimit) {
  const Json report = expect_json(imago_run({"doctor", "--json"}, kernels("ref")));
  EXPECT_EQ(report.at("kernel_limit"), "ref");
  for (const Json& choice : report.at("kernels")) {
    EXPECT_TRUE(choice.at("kernel").get<std::string>().ends_with("/ref"));
  }
}

TEST(Doctor, AnUnknownKernelLimitIsAnError) {
  expect_error(imago_run({"doctor"}, kernels("sse9")), 2,
               "IMAGO_KERNELS is 'sse9'; it may be ref, avx2, avx512, amx or neon");
  expect_error(imago_run({"doctor", "--json"}, kernels("AVX2")), 2, "IMAGO_KERNELS is 'AVX2'");
}

TEST(Doctor, TextAnswersEachQuestion) {
  const ProcessResult result = imago_run({"doctor", "--threads=1"}, kernels(""));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* words :
       {"CPU ", "Caches ", "Memory ", "GB/s with 1 thread\n", "Kernels ", "Models ", "GPUs ", "Advice "}) {
    EXPECT_NE(result.out.find(words), std::string::npos) << words << " is missing from\n" << result.out;
  }
  const std::string about_gpus = accelerators().empty() ? "none: " + accelerator_problem() : "GB/s, reads and writes";
  EXPECT_NE(result.out.find(about_gpus), std::string::npos) << result.out;
}

TEST(Doctor, ThreadsAreANumberInRange) {
  expect_error(imago_run({"doctor", "-t", "many"}), 2, "--threads");
  expect_error(imago_run({"doctor", "-t", "-1"}), 2, "--threads");
  expect_error(imago_run({"doctor", "-t", "1025"}), 2, "--threads");
  expect_error(imago_run({"doctor", "-t"}), 2, "--threads");
  expect_error(imago_run({"doctor", "-t", "99999999999999999999"}), 2, "--threads");
}

}  // namespace
}  // namespace imago::testing
