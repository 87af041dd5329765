// The public bulk conversions: layouts of docs/formats/checkpoint.md, errors, and independence of the number of
// threads.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "imago/system.h"

namespace imago {
namespace {

std::vector<std::byte> packed(DType dtype, const std::vector<float>& weights, Scales scales) {
  std::vector<std::byte> bytes(packed_bytes(dtype, weights.size()));
  encode(dtype, weights, scales, bytes);
  return bytes;
}

std::vector<float> unpacked(DType dtype, const std::vector<std::byte>& bytes, std::size_t count, Scales scales) {
  std::vector<float> weights(count);
  decode(dtype, bytes, scales, weights);
  return weights;
}

constexpr std::array<float, 1> kOne = {1};
constexpr Scales kUnscaled{kOne, 1'000'000'000};

TEST(Layout, ExamplesOfTheSpecification) {
  struct Example {
    DType dtype;
    std::vector<float> weights;
    std::vector<int> bytes;
  };
  const Example examples[] = {
      {DType::int4, {1, -1, 7}, {0x1F, 0x70}},
      {DType::ternary, {1, -1, 0, 1, -1}, {0x71, 0xC0}},
      {DType::binary, {1, -1, -1, 1, 1, -1, 1, 1, 1}, {0x9B, 0x80}},
      {DType::int2, {-2, 1}, {0x90}},
      {DType::uint4, {15, 0, 9}, {0xF0, 0x90}},
      {DType::uint2, {3, 0, 1, 2}, {0xC6}},
      {DType::fp4, {0.5f, -6}, {0x1F}},
      {DType::int8, {-1, 127}, {0xFF, 0x7F}},
      {DType::int16, {-2}, {0xFE, 0xFF}},
      {DType::uint32, {0x01020300}, {0x00, 0x03, 0x02, 0x01}},
      {DType::int64, {-1}, {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}},
      {DType::float32, {1}, {0x00, 0x00, 0x80, 0x3F}},
      {DType::float16, {1}, {0x00, 0x3C}},
      {DType::bfloat16, {1}, {0x80, 0x3F}},
      {DType::fp8e4m3, {448, -1}, {0x7E, 0xB8}},
  };
  for (const Example& example : examples) {
    const std::vector<std::byte> got = packed(example.dtype, example.weights, kUnscaled);
    ASSERT_EQ(got.size(), example.bytes.size()) << name(example.dtype);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(std::to_integer<int>(got[i]), example.bytes[i]) << name(example.dtype) << ", byte " << i;
    }
    EXPECT_EQ(unpacked(example.dtype, got, example.weights.size(), kUnscaled), example.weights) << name(example.dtype);
  }
}

TEST(Convert, WrongSizesAreShapeErrors) {
  const std::vector<float> weights(5, 1.0f);
  std::vector<std::byte> bytes(3);
  std::vector<float> out(5);
  EXPECT_NO_THROW(encode(DType::int4, weights, kUnscaled, bytes));
  EXPECT_THROW(encode(DType::int4, weights, kUnscaled, std::span(bytes).first(2)), ShapeError);
  EXPECT_THROW(encode(DType::int8, weights, kUnscaled, bytes), ShapeError);
  EXPECT_THROW(decode(DType::int4, std::span(bytes).first(2), kUnscaled, out), ShapeError);
  EXPECT_THROW(decode(DType::int4, bytes, kUnscaled, std::span(out).first(4)), ShapeError);
}

TEST(Convert, TooFewScalesAreAShapeError) {
  const std::vector<float> weights(5, 1.0f);
  std::vector<std::byte> bytes(3);
  const std::vector<float> two = {1, 1};
  EXPECT_NO_THROW(encode(DType::int4, weights, {two, 3}, bytes));
  EXPECT_THROW(encode(DType::int4, weights, {two, 2}, bytes), ShapeError);
  EXPECT_THROW(encode(DType::int4, weights, {two, 0}, bytes), ShapeError);
  EXPECT_THROW(encode(DType::int4, weights, {{}, 5}, bytes), ShapeError);
  std::vector<std::byte> wide(10);
  EXPECT_NO_THROW(encode(DType::float16, weights, {}, wide)) << "types without a scale ask for none";
  EXPECT_NO_THROW(encode(DType::int4, {}, {}, {})) << "nothing to scale";
}

TEST(Convert, ImpossibleScalesAreUsageErrors) {
  const std::vector<float> weights(2, 1.0f);
  std::vector<std::byte> bytes(2);
  std::vector<float> out(2);
  for (const float bad : {-1.0f, INFINITY, -INFINITY, NAN}) {
    const std::vector<float> scales = {1, bad};
    EXPECT_THROW(encode(DType::int8, weights, {scales, 1}, bytes), UsageError) << bad;
    EXPECT_THROW(decode(DType::int8, bytes, {scales, 1}, out), UsageError) << bad;
  }
}

TEST(Convert, ScaleZeroActsAsOne) {
  const std::vector<float> zero = {0};
  const std::vector<float> weights = {3, -2, 100};
  const std::vector<std::byte> bytes = packed(DType::int8, weights, {zero, 3});
  EXPECT_EQ(bytes, packed(DType::int8, weights, kUnscaled));
  EXPECT_EQ(unpacked(DType::int8, bytes, 3, {zero, 3}), weights);
}

TEST(Convert, ThreadsDoNotChangeTheResult) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> weights(100'003);
  for (float& w : weights) w = normal(random);
  const std::size_t group = 77;
  std::vector<float> scales((weights.size() - 1) / group + 1);
  for (float& s : scales) s = std::fabs(normal(random));
  const int before = thread_count();
  for (const DTypeInfo& type : kDTypes) {
    set_thread_count(1);
    const std::vector<std::byte> alone = packed(type.id, weights, {scales, group});
    const std::vector<float> alone_unpacked = unpacked(type.id, alone, weights.size(), {scales, group});
    for (const int threads : {2, 3, 7}) {
      set_thread_count(threads);
      EXPECT_EQ(packed(type.id, weights, {scales, group}), alone) << type.name << ", threads: " << threads;
      EXPECT_EQ(unpacked(type.id, alone, weights.size(), {scales, group}), alone_unpacked) << type.name;
    }
  }
  set_thread_count(before);
}

TEST(Convert, AgreesWithTheDefinition) {
  const std::vector<float> weights = {0.3f, -0.7f, 2.4f, -5, 0, 1e-3f};
  const std::vector<float> scale = {0.4f};
  for (const DTypeInfo& type : kDTypes) {
    const Scales scales{scale, weights.size()};
    const std::vector<float> got = unpacked(type.id, packed(type.id, weights, scales), weights.size(), scales);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(got[i], simulate_precision(weights[i], type.id, scale[0])) << type.name << ", weight " << weights[i];
    }
  }
}

}  // namespace
}  // namespace imago
