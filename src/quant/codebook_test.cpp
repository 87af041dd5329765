// The formats with codebooks, and those that came with them, against what ggml makes of the same bytes and weights.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

#include "imago/codec.h"
#include "testing/blocks.h"
#include "testing/safetensors.h"

namespace imago {
namespace {

/// Bytes that whoever made the reference data drew in the same way.
class Draw {
 public:
  explicit Draw(std::uint32_t seed) : state_(seed) {}
  std::uint32_t next() { return state_ = state_ * 1664525u + 1013904223u; }

 private:
  std::uint32_t state_;
};

/// FNV-1a of the bits of some floats.
std::uint64_t digest(std::span<const float> values) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::byte byte : std::as_bytes(values))
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001B3u;
  return hash;
}

class Codebooks : public ::testing::TestWithParam<BlockFormat> {
 protected:
  static constexpr std::size_t kRows = 12, kColumns = 1024;

  static const nlohmann::json& reference() {
    static const nlohmann::json all =
        nlohmann::json::parse(std::ifstream(std::string(IMAGO_TEST_DATA) + "/ggml/codebooks.json"));
    return all;
  }
  const nlohmann::json& expected() const { return reference().at(std::string(name(GetParam()))); }

  /// The error of each row against ggml's, on average.
  void compare_errors(std::string_view key, std::span<const float> importance, double most) const {
    const auto input = testing::SafetensorsFile("ggml/blocks.safetensors").values<float>("input");
    double sum = 0;
    int rows = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      const std::span<const float> x = std::span(input).subspan(row * kColumns, kColumns);
      std::vector<std::byte> blocks(packed_bytes(GetParam(), kColumns));
      std::vector<float> back(kColumns);
      quantize_row(GetParam(), x, blocks, importance);
      dequantize_row(GetParam(), blocks, back);
      const double ours = testing::weighted_rmse(x, back, importance), theirs = expected().at(key).at(row);
      EXPECT_LE(ours, 1.02 * theirs + 1e-12) << "row " << row;
      if (theirs == 0) continue;
      sum += ours / theirs;
      ++rows;
    }
    EXPECT_LT(sum / rows, most);
  }
};

TEST_P(Codebooks, DecodeEveryCodeBitForBit) {
  // Random bytes; of the scale, a binary16, the largest bit of the exponent is cleared: it is finite.
  constexpr std::size_t kBlocks = 1024;
  const auto block_bytes = static_cast<std::size_t>(info(GetParam()).bytes);
  std::vector<std::byte> blocks(kBlocks * block_bytes);
  Draw draw(7);
  for (std::byte& byte : blocks) byte = static_cast<std::byte>(draw.next() >> 24);
  const std::size_t top_of_scale = GetParam() == BlockFormat::iq1_m ? 55 : 1;
  for (std::size_t b = 0; b < kBlocks; ++b) blocks[b * block_bytes + top_of_scale] &= std::byte{0xBF};
  std::vector<float> weights(kBlocks * static_cast<std::size_t>(info(GetParam()).values));
  dequantize_row(GetParam(), blocks, weights);
  EXPECT_EQ(fmt::format("{:016x}", digest(weights)), expected().at("decoded").get<std::string>());
}

TEST_P(Codebooks, LoseNoMoreThanGgml) { compare_errors("plain", {}, 1.0001); }

TEST_P(Codebooks, LoseNoMoreThanGgmlWithImportance) {
  std::vector<float> importance(kColumns);
  Draw draw(1);
  for (float& factor : importance) {
    const float u = static_cast<float>(draw.next() >> 8) / 16777216.0f;
    factor = 0.01f + u * u * u;
  }
  compare_errors("weighted", importance, 1.0);
}

INSTANTIATE_TEST_SUITE_P(Formats, Codebooks,
                         ::testing::Values(BlockFormat::iq1_s, BlockFormat::iq1_m, BlockFormat::iq2_xxs,
                                           BlockFormat::iq2_xs, BlockFormat::iq2_s, BlockFormat::iq3_xxs,
                                           BlockFormat::iq3_s, BlockFormat::q1_0, BlockFormat::q2_0),
                         testing::block_format_name);

}  // namespace
}  // namespace imago
