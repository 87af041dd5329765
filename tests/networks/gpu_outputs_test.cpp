// The original engine's networks on a GPU: what the host computes of them, in every type and layer that they have.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "imago/files.h"
#include "testing/gpu.h"
#include "testing/loom_files.h"

namespace imago {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class GpuOutputs : public testing::GpuTest {
 protected:
  /// Runs every checkpoint of the folder that has a recorded input, on the CPU and on the GPU. Returns how many.
  std::size_t compare_folder(const fs::path& folder) {
    std::size_t compared = 0;
    for (const fs::path& path : testing::loom_checkpoints(folder)) {
      const fs::path recorded = fs::path(path).replace_extension(".ref.json");
      if (!fs::exists(recorded)) continue;
      const json reference = json::parse(testing::read_text(recorded));
      if (!reference.contains("input") || reference.at("output").is_null()) continue;
      if (reference.contains("not_in_checkpoint")) continue;  // no network without what the file lost
      SCOPED_TRACE(path.filename().string());
      compare(path, reference);
      ++compared;
    }
    return compared;
  }

 private:
  void compare(const fs::path& path, const json& reference) {
    Network network = load_network(path);
    std::vector<float> input;
    for (const json& number : reference.at("input")) input.push_back(number.is_string() ? 0.5f : number.get<float>());
    const Tensor<float> x(Shape(reference.at("input_shape").get<std::vector<std::size_t>>()), std::move(input));
    const Tensor<float> wanted = network.forward(x);
    network.run_on(device());
    const Tensor<float>& got = network.forward(x);
    ASSERT_EQ(got.shape().to_string(), wanted.shape().to_string());
    float largest = 0;
    for (const float value : wanted.values()) largest = std::max(largest, std::abs(value));
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_NEAR(got[i], wanted[i], 2e-6f + 2e-5f * largest) << "entry " << i;
    }
  }
};

TEST_F(GpuOutputs, OfTheCasesInTheRepository) { EXPECT_GE(compare_folder(testing::loom_folder()), 55u); }

TEST_F(GpuOutputs, OfTheWholeFolder) {
  if (!fs::exists(testing::shared_loom_folder())) GTEST_SKIP() << testing::missing_reference("loom");
  EXPECT_GE(compare_folder(testing::shared_loom_folder()), 320u);
}

}  // namespace
}  // namespace imago
