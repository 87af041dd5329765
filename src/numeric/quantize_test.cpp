// The rules of docs/numeric.md, one value at a time.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "imago/numeric.h"

namespace imago {
namespace {

/// A code as a number, whatever its type; the pattern of the small floats.
template <Numeric T>
double number_of(T code) {
  if constexpr (requires { code.bits; }) {
    return code.bits;
  } else if constexpr (requires { code.value; }) {
    return code.value;
  } else {
    return static_cast<double>(code);
  }
}

template <Numeric T>
double code_of(float w, float scale = 1) {
  return number_of(quantize_value<T>(w, scale));
}

/// The ends of an integer type, typed in from the specification.
struct Range {
  DType dtype;
  double lowest, highest;
};
constexpr Range kRanges[] = {
    {DType::int64, -0x1p63, 0x1p63},
    {DType::int32, -2147483648.0, 2147483647.0},
    {DType::int16, -32768, 32767},
    {DType::int8, -128, 127},
    {DType::uint64, 0, 0x1p64},
    {DType::uint32, 0, 4294967295.0},
    {DType::uint16, 0, 65535},
    {DType::uint8, 0, 255},
    {DType::int4, -8, 7},
    {DType::uint4, 0, 15},
    {DType::int2, -2, 1},
    {DType::uint2, 0, 3},
    {DType::ternary, -1, 1},
};

TEST(RoundHalfAway, HalvesLeaveZero) {
  EXPECT_EQ(round_half_away(0.5f), 1);
  EXPECT_EQ(round_half_away(-0.5f), -1);
  EXPECT_EQ(round_half_away(2.5f), 3);
  EXPECT_EQ(round_half_away(-2.5f), -3);
  EXPECT_EQ(round_half_away(std::nextafterf(0.5f, 0)), 0) << "adding 0.5 would carry it to 1";
  EXPECT_EQ(round_half_away(8388607.5f), 8388608);
  EXPECT_EQ(round_half_away(8388609), 8388609) << "an odd integer where 0.5 is half a step";
  EXPECT_EQ(round_half_away(1e30f), 1e30f);
  EXPECT_TRUE(std::isnan(round_half_away(NAN)));
}

TEST(Quantize, IntegersRoundAndSaturate) {
  for (const Range& range : kRanges) {
    visit(range.dtype, [&]<class T>(std::type_identity<T>) {
      SCOPED_TRACE(name(range.dtype));
      EXPECT_EQ(code_of<T>(0), 0);
      EXPECT_EQ(code_of<T>(-0.0f), 0);
      EXPECT_EQ(code_of<T>(0.5f), 1);
      EXPECT_EQ(code_of<T>(0.49999997f), 0);
      EXPECT_EQ(code_of<T>(-0.5f), range.lowest < 0 ? -1 : 0);
      EXPECT_EQ(code_of<T>(-0.49999997f), 0);
      for (const float huge : {1e20f, std::numeric_limits<float>::max(), INFINITY}) {
        EXPECT_EQ(code_of<T>(huge), range.highest) << huge;
        EXPECT_EQ(code_of<T>(-huge), range.lowest) << -huge;
      }
      EXPECT_EQ(code_of<T>(NAN), 0);
      EXPECT_EQ(code_of<T>(-NAN), 0);
      EXPECT_EQ(code_of<T>(3, 3), 1) << "the scale divides";
      EXPECT_EQ(code_of<T>(1, 0), 1) << "a scale of 0 acts as 1";
    });
  }
}

TEST(Quantize, WideIntegersKeepEveryFloatInRange) {
  EXPECT_EQ(quantize_value<std::int64_t>(0x1p62f, 1), std::int64_t{1} << 62);
  EXPECT_EQ(quantize_value<std::int64_t>(0x1.fffffep62f, 1), 0x7FFFFF8000000000);
  EXPECT_EQ(quantize_value<std::int64_t>(0x1p63f, 1), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(quantize_value<std::int64_t>(-0x1p63f, 1), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(quantize_value<std::uint64_t>(0x1p63f, 1), std::uint64_t{1} << 63);
  EXPECT_EQ(quantize_value<std::uint64_t>(0x1p64f, 1), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(quantize_value<std::int32_t>(2147483520.0f, 1), 2147483520);
  EXPECT_EQ(quantize_value<std::uint32_t>(0x1p31f, 1), 2147483648u);
}

TEST(Quantize, BinaryIsTheSign) {
  EXPECT_EQ(code_of<Binary>(0), 1);
  EXPECT_EQ(code_of<Binary>(-0.0f), 1) << "-0 >= 0";
  EXPECT_EQ(code_of<Binary>(1e-40f), 1);
  EXPECT_EQ(code_of<Binary>(-1e-40f), -1);
  EXPECT_EQ(code_of<Binary>(INFINITY), 1);
  EXPECT_EQ(code_of<Binary>(-INFINITY), -1);
  EXPECT_EQ(code_of<Binary>(NAN), -1);
}

TEST(Quantize, FloatingFormatsKeepTheSignOfZero) {
  for (const DType dtype :
       {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::fp8e4m3, DType::fp8e5m2, DType::fp4}) {
    EXPECT_TRUE(std::signbit(simulate_precision(-0.0f, dtype, 0.3f))) << name(dtype);
    EXPECT_FALSE(std::signbit(simulate_precision(0.0f, dtype, 0.3f))) << name(dtype);
  }
  EXPECT_TRUE(std::signbit(simulate_precision(-1e-20f, DType::fp4, 1))) << "also of a weight that becomes zero";
}

TEST(Quantize, WideFloatsIgnoreTheScale) {
  for (const DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16}) {
    EXPECT_EQ(simulate_precision(1.5f, dtype, 123), 1.5f) << name(dtype);
  }
}

TEST(Dequantize, MultipliesByTheScale) {
  EXPECT_EQ(dequantize_value(std::int8_t{-128}, 0.5f), -64.0f);
  EXPECT_EQ(dequantize_value(Int4{-8}, 2), -16.0f);
  EXPECT_EQ(dequantize_value(Binary{-1}, 0.25f), -0.25f);
  EXPECT_EQ(dequantize_value(Ternary{1}, 0), 1.0f) << "a scale of 0 acts as 1";
  EXPECT_EQ(dequantize_value(Fp8E4M3{0x7E}, 2), 896.0f);
  EXPECT_EQ(dequantize_value(Fp4{0xF}, 0.5f), -3.0f);
  EXPECT_EQ(dequantize_value(std::numeric_limits<std::uint64_t>::max(), 1), 0x1p64f);
}

TEST(CastWeights, IsOneCodePerWeight) {
  const std::vector<float> weights = {1, -0.6f, 0.2f};
  EXPECT_EQ(cast_weights<Ternary>(weights, 1), (std::vector<Ternary>{{1}, {-1}, {0}}));
  EXPECT_TRUE(cast_weights<Half>({}, 1).empty());
}

/// Every code of a scaled type of up to 16 bits that stands for a number, and of wider integers those up to 2^20,
/// sampled.
template <Numeric T>
std::vector<T> codes_to_check() {
  constexpr DTypeInfo kInfo = info(dtype_of<T>);
  constexpr bool kUnsigned = kInfo.kind == NumberKind::unsigned_integer;
  std::vector<T> codes;
  if constexpr (kInfo.kind == NumberKind::narrow_float) {
    for (unsigned pattern = 0; pattern < 1u << kInfo.bits; ++pattern) {
      const T code{static_cast<std::uint8_t>(pattern)};
      if (std::isfinite(dequantize_value(code, 1))) codes.push_back(code);
    }
  } else if constexpr (kInfo.kind == NumberKind::binary) {
    codes = {{1}, {-1}};
  } else {
    // Quantizing the number itself under scale 1 saturates: every pattern of the type appears, and no other.
    const std::int64_t most = kInfo.bits > 16 ? 1 << 20 : 1 << kInfo.bits;
    const std::int64_t step = kInfo.bits > 16 ? 61 : 1;
    for (std::int64_t i = kUnsigned ? 0 : -most; i <= most; i += step) {
      codes.push_back(quantize_value<T>(static_cast<float>(i), 1));
    }
    codes.push_back(quantize_value<T>(static_cast<float>(most), 1));
  }
  return codes;
}

std::vector<float> scales_to_check() {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> exponent(-30, 30);
  std::vector<float> scales = {1e-30f, 1e30f, 1, 0.1f, 1 / 3.0f, 1 / 127.0f, 0x1.fffffep-1f, 0x1.000002p0f};
  for (int i = 0; i < 120; ++i) scales.push_back(static_cast<float>(std::pow(10, exponent(random))));
  return scales;
}

// docs/formats/checkpoint.md: what is saved, loaded, unpacked and quantized again must give the same codes.
TEST(RoundTrip, QuantizeUndoesDequantize) {
  for (const DTypeInfo& type : kDTypes) {
    visit(type.id, [&]<class T>(std::type_identity<T>) {
      if constexpr (info(dtype_of<T>).kind != NumberKind::wide_float) {
        const std::vector<T> codes = codes_to_check<T>();
        for (const float scale : scales_to_check()) {
          for (const T code : codes) {
            const T again = quantize_value<T>(dequantize_value<T>(code, scale), scale);
            ASSERT_EQ(number_of(again), number_of(code)) << type.name << " under scale " << scale;
          }
        }
      }
    });
  }
}

TEST(RoundTrip, WideFloatsOfSixteenBits) {
  for (unsigned pattern = 0; pattern <= 0xFFFF; ++pattern) {
    const Half half{static_cast<std::uint16_t>(pattern)};
    const BFloat16 brain{static_cast<std::uint16_t>(pattern)};
    const unsigned half_quiet = (pattern & 0x7FFF) > 0x7C00 ? 0x200u : 0u;  // signalling NaNs come back quiet
    const unsigned brain_quiet = (pattern & 0x7FFF) > 0x7F80 ? 0x40u : 0u;
    ASSERT_EQ(to_half(from_half(half)).bits, pattern | half_quiet);
    ASSERT_EQ(to_bfloat16(from_bfloat16(brain)).bits, pattern | brain_quiet);
  }
}

TEST(ZeroPoint, IsTheCodeOfZero) {
  const auto code = [](float w, float scale, float zero) { return int{quantize_value<std::uint8_t>(w, scale, zero)}; };
  EXPECT_EQ(code(0, 0.5f, 100), 100);
  EXPECT_EQ(code(-1, 0.5f, 100), 98);
  EXPECT_EQ(code(0.25f, 0.5f, 100), 101) << "halves away from zero, before the zero point is added";
  EXPECT_EQ(code(-0.25f, 0.5f, 100), 99);
  EXPECT_EQ(code(-60, 0.5f, 100), 0) << "saturates";
  EXPECT_EQ(code(1000, 0.5f, 100), 255);
  EXPECT_EQ(code(NAN, 0.5f, 100), 100) << "NaN is 0";
  EXPECT_EQ(dequantize_value<std::uint8_t>(98, 0.5f, 100), -1);
  EXPECT_EQ(quantize_value<UInt2>(-1, 1, 2).value, 1);
  EXPECT_EQ(dequantize_value<UInt2>({0}, 3, 2), -6);
  EXPECT_EQ(quantize_value<std::uint32_t>(0x1p33f, 1, 1000), 0xFFFFFFFFu);
  EXPECT_EQ(quantize_value<std::uint64_t>(-5, 1, 1000), 995u);
}

TEST(ZeroPoint, IsIgnoredByAllOtherTypes) {
  for (const DTypeInfo& type : kDTypes) {
    if (type.kind == NumberKind::unsigned_integer) continue;
    visit(type.id, [&]<class T>(std::type_identity<T>) {
      EXPECT_EQ(quantize_value<T>(0.75f, 0.5f, 7), quantize_value<T>(0.75f, 0.5f)) << type.name;
      const T code = quantize_value<T>(0.75f, 0.5f);
      EXPECT_EQ(dequantize_value<T>(code, 0.5f, 7), dequantize_value<T>(code, 0.5f)) << type.name;
    });
  }
}

}  // namespace
}  // namespace imago
