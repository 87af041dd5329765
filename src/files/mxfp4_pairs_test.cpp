// Weights of a folder in mxfp4 against their definition: code times two to the exponent minus 127.

#include "files/mxfp4_pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "testing/problems.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"

namespace imago::files {
namespace {

constexpr float kLevels[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

/// A folder with `a_blocks`, [2][3][2][16], and `a_scales` of a shape.
class Mxfp4Folder : public ::testing::Test {
 protected:
  TensorFile open(const Shape& scales_shape, const char* method = "mxfp4") {
    const auto draw = [](std::size_t count, unsigned seed, unsigned from, unsigned range) {
      std::vector<std::uint8_t> bytes;
      for (const float value : testing::random_values(count, seed)) {
        bytes.push_back(static_cast<std::uint8_t>(
            from + std::min(range - 1, static_cast<unsigned>(std::fabs(value) * static_cast<float>(range)))));
      }
      return bytes;
    };
    codes_ = draw(2 * 3 * 2 * 16, 1, 0, 256);
    scales_ = draw(scales_shape.elements(), 2, 120, 12);
    SafetensorsWriter writer((folder_.path() / "model.safetensors").string(),
                             {{"a_blocks", SafetensorsType::u8, Shape{2, 3, 2, 16}},
                              {"a_scales", SafetensorsType::u8, scales_shape},
                              {"b_blocks", SafetensorsType::u8, Shape{4}}});
    writer.write("a_blocks", std::as_bytes(std::span(codes_)));
    writer.write("a_scales", std::as_bytes(std::span(scales_)));
    writer.write("b_blocks", std::as_bytes(std::span(codes_).first(4)));
    writer.commit();
    std::ofstream(folder_.path() / "config.json")
        << R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": ")" << method << R"("}})";
    return TensorFile::open(folder_.path().string());
  }

  testing::TempDir folder_;
  std::vector<std::uint8_t> codes_, scales_;
};

TEST_F(Mxfp4Folder, PairsAreBlocks) {
  const TensorFile file = open({2, 3, 2});
  ASSERT_EQ(file.tensors().size(), 2u);
  const StoredTensor& tensor = file.require("a");
  EXPECT_EQ(tensor.format, Format(BlockFormat::mxfp4));
  EXPECT_EQ(tensor.shape, (Shape{2, 3, 64}));
  EXPECT_EQ(file.require("b_blocks").shape, (Shape{4})) << "has no scales";
  std::vector<float> values(tensor.shape.elements());
  decode_tensor(tensor, 0, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const unsigned code = codes_[i / 2] >> (i % 2 * 4) & 15;  // neighbours share a byte
    EXPECT_EQ(values[i], std::ldexp(kLevels[code], scales_[i / 32] - 127)) << i;
  }
}

TEST_F(Mxfp4Folder, OtherFoldersKeepTheirTensors) { EXPECT_EQ(open({2, 3, 2}, "other").tensors().size(), 3u); }

TEST_F(Mxfp4Folder, ShapesMustBelongTogether) {
  testing::expect_problem([&] { open({2, 3, 3}); }, "tensor 'a_blocks' is U8 [2, 3, 2, 16], and 'a_scales'");
}

}  // namespace
}  // namespace imago::files
