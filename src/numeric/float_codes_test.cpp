// The small floating formats against PyTorch's conversions and hand-made tables.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "imago/numeric.h"
#include "testing/safetensors.h"

namespace imago {
namespace {

const testing::SafetensorsFile& torch() {
  static const testing::SafetensorsFile file("torch/float_types.safetensors");
  return file;
}

/// The same number, sign of zero included, or both NaN.
bool same_value(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

template <class Code, class Decode>
void expect_decodes_as_torch(const std::string& tensor, Decode decode) {
  const std::vector<float> wanted = torch().values<float>(tensor);
  ASSERT_EQ(wanted.size(), std::size_t{1} << (8 * sizeof(Code)));
  for (std::size_t bits = 0; bits < wanted.size(); ++bits) {
    const float got = decode(Code{static_cast<decltype(Code::bits)>(bits)});
    EXPECT_TRUE(same_value(got, wanted[bits])) << tensor << " code " << bits << ": " << got << ", not " << wanted[bits];
  }
}

TEST(Torch, DecodesEveryCodeAlike) {
  expect_decodes_as_torch<Half>("float16.decode_all", from_half);
  expect_decodes_as_torch<Fp8E4M3>("fp8e4m3.decode_all", from_fp8e4m3);
  expect_decodes_as_torch<Fp8E5M2>("fp8e5m2.decode_all", from_fp8e5m2);
}

/// `limit`: magnitudes from there on saturate here and become infinity or NaN in PyTorch; NaN: none do.
template <class Encode, class Decode>
void expect_encodes_as_torch(const std::string& type, Encode encode, Decode decode, float limit) {
  const std::vector<float> inputs = torch().values<float>("input");
  const std::vector<std::int32_t> wanted = torch().values<std::int32_t>(type + ".bits");
  const std::vector<float> decoded = torch().values<float>(type + ".decoded");
  ASSERT_GT(inputs.size(), 9000u);
  ASSERT_EQ(wanted.size(), inputs.size());
  std::size_t compared = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto code = encode(inputs[i]);
    if (std::isnan(inputs[i])) {
      EXPECT_TRUE(std::isnan(decode(code))) << type;
      continue;
    }
    if (std::fabs(inputs[i]) >= limit) continue;
    EXPECT_EQ(code.bits, wanted[i]) << type << " of " << inputs[i];
    EXPECT_TRUE(same_value(decode(code), decoded[i])) << type << " of " << inputs[i];
    ++compared;
  }
  EXPECT_GT(compared, inputs.size() / 2) << type;
}

TEST(Torch, EncodesItsInputsAlike) {
  constexpr float kNone = NAN;  // no magnitude compares as reaching it
  expect_encodes_as_torch("bfloat16", to_bfloat16, from_bfloat16, kNone);
  expect_encodes_as_torch("float16", to_half, from_half, kNone);
  expect_encodes_as_torch("fp8e4m3", to_fp8e4m3, from_fp8e4m3, 464);    // midway between 448 and the absent 480
  expect_encodes_as_torch("fp8e5m2", to_fp8e5m2, from_fp8e5m2, 61440);  // midway between 57344 and 65536
}

TEST(Half, OverflowsToInfinityAndKeepsNaN) {
  EXPECT_EQ(to_half(65504).bits, 0x7BFF);
  EXPECT_EQ(to_half(std::nextafterf(65520, 0)).bits, 0x7BFF);
  EXPECT_EQ(to_half(65520).bits, 0x7C00);
  EXPECT_EQ(to_half(-INFINITY).bits, 0xFC00);
  EXPECT_EQ(to_half(0x1p-24f).bits, 1);
  EXPECT_EQ(to_half(0x1p-25f).bits, 0) << "a tie, to even";
  EXPECT_EQ(to_half(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_half(std::bit_cast<float>(0x7F802000u)).bits, 0x7E01) << "quiet, upper payload kept";
  EXPECT_EQ(to_half(std::bit_cast<float>(0xFF800001u)).bits, 0xFE00)
      << "a payload of low bits must not become infinity";
}

TEST(BFloat16, RoundsToEvenAndKeepsNaN) {
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3F808000u)).bits, 0x3F80) << "a tie, to even";
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3F818000u)).bits, 0x3F82) << "a tie, to even";
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x3F808001u)).bits, 0x3F81);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x7F7FFFFFu)).bits, 0x7F80) << "the largest float rounds to infinity";
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0x7F800001u)).bits, 0x7FC0);
  EXPECT_EQ(to_bfloat16(std::bit_cast<float>(0xFFFFFFFFu)).bits, 0xFFFF);
}

TEST(Fp8, SaturatesWhereTorchDoesNot) {
  for (const float beyond : {449.0f, 464.0f, 480.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(to_fp8e4m3(beyond).bits, 0x7E) << beyond;
    EXPECT_EQ(to_fp8e4m3(-beyond).bits, 0xFE) << beyond;
  }
  for (const float beyond : {57345.0f, 61440.0f, 65536.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(to_fp8e5m2(beyond).bits, 0x7B) << beyond;
    EXPECT_EQ(to_fp8e5m2(-beyond).bits, 0xFB) << beyond;
  }
}

TEST(Fp8, NaNHasOneCodePerSign) {
  EXPECT_EQ(to_fp8e4m3(std::bit_cast<float>(0x7F800001u)).bits, 0x7F);
  EXPECT_EQ(to_fp8e4m3(std::bit_cast<float>(0xFFC00000u)).bits, 0xFF);
  EXPECT_EQ(to_fp8e5m2(std::bit_cast<float>(0x7FC12345u)).bits, 0x7F);
  EXPECT_EQ(to_fp8e5m2(std::bit_cast<float>(0xFFC00000u)).bits, 0xFF);
}

TEST(Fp4, HasTheValuesOfTheStandard) {
  constexpr float kValues[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (unsigned code = 0; code < 8; ++code) {
    const auto positive = static_cast<std::uint8_t>(code);
    const auto negative = static_cast<std::uint8_t>(code | 8);
    EXPECT_TRUE(same_value(from_fp4({positive}), kValues[code])) << code;
    EXPECT_TRUE(same_value(from_fp4({negative}), -kValues[code])) << code;
    EXPECT_EQ(to_fp4(kValues[code]).bits, positive);
    EXPECT_EQ(to_fp4(-kValues[code]).bits, negative);
  }
}

TEST(Fp4, TiesGoToTheEvenCode) {
  struct Tie {
    float value;
    unsigned code;
  };
  for (const Tie& tie : {Tie{0.25f, 0}, {0.75f, 2}, {1.25f, 2}, {1.75f, 4}, {2.5f, 4}, {3.5f, 6}, {5, 6}}) {
    EXPECT_EQ(to_fp4(tie.value).bits, tie.code) << tie.value;
    EXPECT_EQ(to_fp4(-tie.value).bits, tie.code | 8) << -tie.value;
    const unsigned below = to_fp4(std::nextafterf(tie.value, 0)).bits;
    const unsigned above = to_fp4(std::nextafterf(tie.value, INFINITY)).bits;
    EXPECT_EQ(above, below + 1) << "the tie at " << tie.value << " parts two neighbours";
  }
}

TEST(Fp4, SaturatesAndHasNoNaN) {
  for (const float beyond : {6.5f, 7.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(to_fp4(beyond).bits, 7) << beyond;
    EXPECT_EQ(to_fp4(-beyond).bits, 15) << beyond;
  }
  EXPECT_EQ(to_fp4(NAN).bits, 0);
  EXPECT_EQ(to_fp4(-NAN).bits, 0);
}

TEST(Fp4, LegacyTableIsThatOfTheOriginal) {
  constexpr float kValues[8] = {0, 0.75f, 1, 1.5f, 2, 3, INFINITY, NAN};
  for (unsigned code = 0; code < 8; ++code) {
    EXPECT_TRUE(same_value(from_fp4({static_cast<std::uint8_t>(code)}, Fp4Table::legacy), kValues[code])) << code;
    EXPECT_TRUE(same_value(from_fp4({static_cast<std::uint8_t>(code | 8)}, Fp4Table::legacy), -kValues[code])) << code;
  }
}

}  // namespace
}  // namespace imago
