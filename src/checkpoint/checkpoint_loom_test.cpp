// Files of the original engine: each comes back byte for byte, and its weights mean what they meant there.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "checkpoint/layer_fields.h"
#include "imago/files.h"
#include "testing/loom_files.h"

namespace imago::checkpoint {
namespace {

namespace fs = std::filesystem;
using testing::loom_checkpoints;
using testing::read_text;

std::size_t expect_all_come_back(const fs::path& folder) {
  std::size_t count = 0;
  for (const fs::path& path : loom_checkpoints(folder)) {
    const std::string text = read_text(path);
    const std::string again = serialize_network(load_network(path));
    EXPECT_TRUE(again == text) << path;
    ++count;
  }
  return count;
}

TEST(Loom, EveryCheckpointComesBackByteForByte) { EXPECT_GE(expect_all_come_back(testing::loom_folder()), 30u); }

TEST(Loom, AlsoTheWholeFolder) {
  if (!fs::exists(testing::shared_loom_folder())) GTEST_SKIP() << testing::missing_reference("loom");
  EXPECT_GE(expect_all_come_back(testing::shared_loom_folder()), 390u);
}

/// Numbers of a reference file: floats, or "NaN", "Inf", "-Inf".
float value_of(const nlohmann::json& number) {
  if (!number.is_string()) return number.get<float>();
  const std::string text = number;
  return text == "NaN" ? std::nanf("") : text == "Inf" ? HUGE_VALF : -HUGE_VALF;
}

std::size_t expect_effective_weights(const fs::path& folder) {
  std::size_t arrays = 0;
  for (const fs::path& path : loom_checkpoints(folder)) {
    const fs::path ref = fs::path(path).replace_extension(".ref.json");
    if (!fs::exists(ref)) continue;
    const nlohmann::json reference = nlohmann::json::parse(read_text(ref));
    const Network network = load_network(path, {.fp4 = Fp4Table::legacy});
    std::map<std::string, const Layer*> layers;
    for_each_path(network, [&](const std::string& name, const Layer& layer) { layers[name] = &layer; });
    if (!reference.contains("weights")) continue;
    for (const nlohmann::json& entry : reference.at("weights")) {
      const std::string name = entry.at("path");
      const auto found = layers.find(name);
      if (found == layers.end() || !found->second->weights) {
        ADD_FAILURE() << path << " " << name;
        continue;
      }
      const std::span<const float> master = found->second->weights->master();
      const nlohmann::json& effective = entry.at("effective");
      EXPECT_EQ(master.size(), effective.size()) << path << " " << name;
      for (std::size_t i = 0; i < std::min(master.size(), effective.size()); ++i) {
        const float wanted = value_of(effective[i]);
        if (std::isnan(wanted) && std::isnan(master[i])) continue;
        EXPECT_EQ(master[i], wanted) << path << " " << name << " weight " << i;
      }
      ++arrays;
    }
  }
  return arrays;
}

TEST(Loom, WeightsAreTheEffectiveOnes) { EXPECT_GE(expect_effective_weights(testing::loom_folder()), 30u); }

TEST(Loom, WeightsOfTheWholeFolder) {
  if (!fs::exists(testing::shared_loom_folder())) GTEST_SKIP() << testing::missing_reference("loom");
  EXPECT_GE(expect_effective_weights(testing::shared_loom_folder()), 390u);
}

}  // namespace
}  // namespace imago::checkpoint
