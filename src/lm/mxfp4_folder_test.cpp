// gpt_oss as it is published, with experts in mxfp4, against the same weights in bfloat16: the same logits, and no
// weight changes on the way to GGUF.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "files/tensor_file.h"
#include "imago/codec.h"
#include "imago/lm.h"
#include "models/recipe.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

constexpr float kLevels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// Codes and exponents of [experts][rows][cols] in two tensors.
struct Experts {
  std::size_t experts, rows, cols;
  std::vector<std::uint8_t> blocks, scales;

  Experts(const Shape& transposed, unsigned seed)
      : experts(transposed[0]), rows(transposed[2]), cols(transposed[1]), blocks(), scales() {
    for (const float value : testing::random_values(experts * rows * cols / 2, seed)) {
      blocks.push_back(static_cast<std::uint8_t>(std::fabs(value) * 255));
    }
    for (const float value : testing::random_values(experts * rows * cols / 32, seed + 1)) {
      scales.push_back(static_cast<std::uint8_t>(120 + 3 * std::fabs(value)));
    }
  }
  float value(std::size_t expert, std::size_t row, std::size_t col) const {
    const std::size_t at = (expert * rows + row) * cols + col;
    return std::ldexp(kLevels[blocks[at / 2] >> (at % 2 * 4) & 15], scales[at / 32] - 127);
  }
  /// [experts][cols][rows]
  std::vector<std::uint16_t> transposed() const {
    std::vector<std::uint16_t> codes;
    for (std::size_t e = 0; e < experts; ++e) {
      for (std::size_t c = 0; c < cols; ++c) {
        for (std::size_t r = 0; r < rows; ++r) {
          const float exact = value(e, r, c);
          std::uint32_t bits = 0;
          std::memcpy(&bits, &exact, sizeof bits);
          codes.push_back(static_cast<std::uint16_t>(bits >> 16));
        }
      }
    }
    return codes;
  }
};

class Mxfp4Model : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::optional<std::string> found = testing::find_torch_model("gpt_oss_bf16");
    if (!found) GTEST_SKIP() << testing::missing_torch_model("gpt_oss_bf16");
    const files::TensorFile source = files::TensorFile::open(*found);
    std::ifstream text(*found + "/config.json");
    nlohmann::json config = nlohmann::json::parse(text);
    for (const bool packed : {false, true}) {
      if (packed) config["quantization_config"] = {{"quant_method", "mxfp4"}};
      write(source, packed, config);
    }
  }

  void write(const files::TensorFile& source, bool packed, const nlohmann::json& config) {
    std::map<std::string, std::vector<std::byte>> bytes;
    std::vector<SafetensorsEntry> entries;
    const auto add = [&](const std::string& name, SafetensorsType type, Shape shape, std::span<const std::byte> data) {
      entries.push_back({name, type, std::move(shape)});
      bytes[name].assign(data.begin(), data.end());
    };
    unsigned seed = 1;
    for (const files::StoredTensor& tensor : source.tensors()) {
      if (!tensor.name.ends_with("_up_proj") && !tensor.name.ends_with("experts.down_proj")) {
        add(tensor.name, *tensor.safetensors_type, tensor.shape, tensor.bytes);
        continue;
      }
      const Experts experts(tensor.shape, seed += 2);
      if (packed) {
        const Shape scales{experts.experts, experts.rows, experts.cols / 32};
        add(tensor.name + "_blocks", SafetensorsType::u8, {scales[0], scales[1], scales[2], 16},
            std::as_bytes(std::span(experts.blocks)));
        add(tensor.name + "_scales", SafetensorsType::u8, scales, std::as_bytes(std::span(experts.scales)));
      } else {
        const std::vector<std::uint16_t> codes = experts.transposed();
        add(tensor.name, SafetensorsType::bf16, tensor.shape, std::as_bytes(std::span(codes)));
      }
    }
    const std::filesystem::path folder = path(packed);
    std::filesystem::create_directories(folder);
    SafetensorsWriter writer((folder / "model.safetensors").string(), entries);
    for (const SafetensorsEntry& entry : writer.entries()) writer.write(entry.name, bytes.at(entry.name));
    writer.commit();
    std::ofstream(folder / "config.json") << config.dump();
  }

  std::filesystem::path path(bool packed) const { return folder_.path() / (packed ? "packed" : "wide"); }

  testing::TempDir folder_;
};

TEST_F(Mxfp4Model, ComputesWhatItsWeightsSay) {
  std::vector<std::vector<float>> logits;
  for (const bool packed : {false, true}) {
    const LanguageModel model = LanguageModel::load(path(packed).string(), {.fast = false});
    Sequence sequence(model, {.context = 32, .cache = CacheKind::float32});
    std::vector<TokenId> ids;
    for (TokenId id = 5; id < 25; ++id) ids.push_back(id);
    logits.emplace_back(ids.size() * model.vocabulary());
    sequence.append(ids, logits.back());
  }
  for (std::size_t i = 0; i < logits[0].size(); ++i) ASSERT_NEAR(logits[1][i], logits[0][i], 1e-4) << i;
}

TEST_F(Mxfp4Model, KeepsItsWeightsInGguf) {
  const files::TensorFile packed = files::TensorFile::open(path(true).string());
  const files::TensorFile wide = files::TensorFile::open(path(false).string());
  const models::ModelRecipe of_packed = models::make_recipe(packed, FileForm::gguf);
  const models::ModelRecipe of_wide = models::make_recipe(wide, FileForm::gguf);
  ASSERT_EQ(of_packed.tensors.size(), of_wide.tensors.size());
  for (std::size_t i = 0; i < of_packed.tensors.size(); ++i) {
    const models::TensorRecipe &a = of_packed.tensors[i], &b = of_wide.tensors[i];
    ASSERT_EQ(a.name, b.name);
    std::vector<float> values(a.shape.elements()), wanted(values.size());
    models::apply_recipe(a, values);
    models::apply_recipe(b, wanted);
    EXPECT_EQ(values, wanted) << a.name;
    if (a.name.find("_exps.weight") == std::string::npos) continue;
    // What a conversion to mxfp4 rounds to are the weights themselves.
    std::vector<std::byte> blocks(packed_bytes(BlockFormat::mxfp4, values.size()));
    encode(BlockFormat::mxfp4, values, blocks);
    std::vector<float> back(values.size());
    dequantize_row(BlockFormat::mxfp4, blocks, back);
    EXPECT_EQ(back, values) << a.name;
  }
}

}  // namespace
}  // namespace imago
