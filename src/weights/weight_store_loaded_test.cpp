// Codes from files and explicit scales.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"
#include "imago/weights.h"
#include "testing/copies.h"

namespace imago {
namespace {

using testing::bytes_of;
using testing::copy;

TEST(SetLoaded, GivesTheValuesAndKeepsTheCodes) {
  WeightStore store(5);
  store.morph(DType::int8);
  const std::vector<std::byte> codes = bytes_of({0x71, 0xC0});
  store.set_loaded(DType::ternary, codes, 0.25f);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{0.25f, -0.25f, 0, 0.25f, -0.25f}));
  EXPECT_EQ(store.find(DType::int8), nullptr) << "the master is another one now";
  const auto version = store.morph(DType::ternary);
  EXPECT_EQ(copy(version->codes()), codes);
  EXPECT_EQ(version->scale(), 0.25f);
  EXPECT_TRUE(version->has_explicit_scale());
}

TEST(SetLoaded, ReemitsCodesThatRequantizingWouldChange) {
  WeightStore store(1);
  const std::vector<std::byte> infinity = bytes_of({0x7C});  // our encoder saturates: it writes 0x7B
  store.set_loaded(DType::fp8e5m2, infinity, 1.0f);
  EXPECT_EQ(copy(store.morph(DType::fp8e5m2)->codes()), infinity);
  EXPECT_EQ(store.master()[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(copy(store.morph(DType::fp8e5m2)->codes()), infinity) << "also once the master was asked for";
  store.unpack(DType::fp8e5m2);
  EXPECT_EQ(copy(store.morph(DType::fp8e5m2)->codes()), infinity);
  EXPECT_EQ(copy(store.force_morph(DType::fp8e5m2)->codes()), bytes_of({0x7B}));
}

TEST(SetLoaded, Float32BecomesTheMaster) {
  WeightStore store(2);
  store.morph(DType::int8);
  store.set_loaded(DType::float32, bytes_of({0, 0, 0, 0x3F, 0, 0, 0x80, 0xBF}), 1.0f);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{0.5f, -1}));
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.morph(DType::float32), nullptr);
}

TEST(SetLoaded, RefusesBadCodesAndChangesNothing) {
  WeightStore store(5);
  store.set_master(std::vector<float>{1, 2, 3, 4, 5});
  const auto version = store.morph(DType::int8);
  EXPECT_THROW(store.set_loaded(DType::ternary, bytes_of({0x71}), 1), ShapeError);
  EXPECT_THROW(store.set_loaded(DType::ternary, bytes_of({0x71, 0xC0, 0}), 1), ShapeError);
  EXPECT_THROW(store.set_loaded(DType::ternary, bytes_of({0x71, 0xC1}), 1), UsageError);
  EXPECT_THROW(store.set_loaded(DType::ternary, bytes_of({0x71, 0x80}), 1), UsageError);
  EXPECT_THROW(store.set_loaded(DType::float32, std::vector<std::byte>(19), 1), ShapeError);
  for (const float scale : {-0.5f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(store.set_loaded(DType::ternary, bytes_of({0x71, 0xC0}), scale), UsageError) << scale;
    EXPECT_THROW(store.set_loaded(DType::float16, std::vector<std::byte>(10), scale), UsageError) << scale;
  }
  EXPECT_EQ(copy(store.master()), (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(store.find(DType::int8), version);
  EXPECT_EQ(store.find(DType::ternary), nullptr);
  EXPECT_EQ(store.scale(DType::ternary), 1.0f);
}

TEST(SetLoaded, ScaleZeroActsAsOneAndStaysZero) {
  WeightStore store(3);
  store.set_loaded(DType::int4, bytes_of({0x1F, 0x70}), 0.0f);
  EXPECT_EQ(copy(store.master()), (std::vector<float>{1, -1, 7}));
  EXPECT_EQ(store.scale(DType::int4), 0.0f);
  EXPECT_EQ(store.morph(DType::int4)->scale(), 0.0f);
  store.edit_master();
  EXPECT_EQ(store.morph(DType::int4)->scale(), 0.0f);
  EXPECT_EQ(copy(store.morph(DType::int4)->codes()), bytes_of({0x1F, 0x70}));
}

TEST(SetLoaded, TypesWithoutAScaleCarryItAlong) {
  WeightStore store(1);
  store.set_loaded(DType::float16, bytes_of({0x00, 0x3C}), 0.125f);
  EXPECT_EQ(store.master()[0], 1.0f) << "never applied";
  EXPECT_EQ(store.scale(DType::float16), 0.125f);
  EXPECT_TRUE(store.morph(DType::float16)->scales().empty());
  store.set_loaded(DType::float32, bytes_of({0, 0, 0x80, 0x3F}), 0.5f);
  EXPECT_EQ(store.scale(DType::float32), 0.5f);
}

TEST(SetLoaded, RowAndGroupScales) {
  Scheme scheme(DType::int8);
  scheme.granularity = Granularity::group;
  scheme.group = 32;
  WeightStore store(2, 32);
  const std::vector<std::byte> codes(64, std::byte{3});
  EXPECT_THROW(store.set_loaded(scheme, codes, std::vector<float>{1}), ShapeError);
  EXPECT_THROW(store.set_loaded(scheme, codes, std::vector<float>{1, 2, 3}), ShapeError);
  EXPECT_THROW(store.set_loaded(scheme, codes, std::vector<float>{1, -2}), UsageError);
  EXPECT_THROW(store.set_loaded(DType::float16, std::vector<std::byte>(128), std::vector<float>{1}), ShapeError);
  store.set_loaded(scheme, codes, std::vector<float>{0.5f, 2});
  EXPECT_EQ(store.master()[31], 1.5f);
  EXPECT_EQ(store.master()[32], 6.0f);
  store.edit_master()[0] = 1000;
  const auto version = store.morph(scheme);
  EXPECT_EQ(copy(version->scales()), (std::vector<float>{0.5f, 2})) << "explicit scales survive the change [D12]";
  EXPECT_TRUE(version->has_explicit_scale());
  EXPECT_EQ(std::to_integer<int>(version->codes()[0]), 127);
  EXPECT_FALSE(store.morph(DType::int8)->has_explicit_scale()) << "that is another scheme";
}

TEST(SetLoaded, TakesNoMoreThanTheCodesUntilTheMasterIsNeeded) {
  WeightStore store(1000);
  store.set_loaded(DType::int8, std::vector<std::byte>(1000, std::byte{1}), 1.0f);
  EXPECT_EQ(store.bytes(), 1004u);
  EXPECT_EQ(store.active(DType::int8), std::vector<float>(1000, 1.0f));
  EXPECT_EQ(store.bytes(), 1004u);
}

TEST(SetScale, IsKeptThroughEveryChangeUntilCleared) {
  WeightStore store(2);
  store.set_master(std::vector<float>{1, -4});
  store.morph(DType::int8);
  store.set_scale(DType::int8, 0.01f);
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.scale(DType::int8), 0.01f);
  EXPECT_EQ(store.active(DType::int8), (std::vector<float>{100 * 0.01f, -128 * 0.01f})) << "values saturate";
  EXPECT_TRUE(store.morph(DType::int8)->has_explicit_scale());
  EXPECT_FALSE(store.morph(DType::int4)->has_explicit_scale());
  store.apply_gradients(std::vector<float>{0, 4}, 1, 0, DType::int8);
  EXPECT_EQ(store.morph(DType::int8)->scale(), 0.01f);
  store.randomize(1, 1);
  EXPECT_EQ(store.morph(DType::int8)->scale(), 0.01f);
  EXPECT_EQ(store.force_morph(DType::int8)->scale(), 0.01f);
  store.clear_scale(DType::int8);
  EXPECT_EQ(store.find(DType::int8), nullptr);
  EXPECT_EQ(store.scale(DType::int8), 1.0f);
  EXPECT_EQ(store.morph(DType::int8)->scale(), derive_scale(DType::int8, store.master()));
}

TEST(SetScale, AnExplicitOneIsNotAnUnsetOne) {
  WeightStore store(2);
  store.set_scale(DType::int8, 1.0f);
  store.set_master(std::vector<float>{0.3f, 300});
  EXPECT_EQ(store.active(DType::int8), (std::vector<float>{0, 127}));
}

TEST(SetScale, RefusesWhatNoScaleCanBe) {
  WeightStore store(2);
  for (const float scale : {-0.5f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    EXPECT_THROW(store.set_scale(DType::int8, scale), UsageError);
  }
  EXPECT_EQ(store.scale(DType::int8), 1.0f);
}

// ---- idempotency: quantize(dequantize(codes)) = codes, so a file survives dropping the version

/// All codes a type can be given by quantization: every pattern of the narrow types, a spread of the wide ones.
std::vector<std::byte> all_codes(DType dtype) {
  const auto append = [](std::vector<std::byte>& bytes, auto value) {
    const auto raw = std::bit_cast<std::array<std::byte, sizeof value>>(value);
    bytes.insert(bytes.end(), raw.begin(), raw.end());
  };
  std::vector<std::byte> bytes;
  visit(dtype, [&]<class T>(std::type_identity<T>) {
    constexpr DTypeInfo kInfo = info(dtype_of<T>);
    if constexpr (kInfo.bits <= 8) {
      for (int pattern = 0; pattern < 256; ++pattern) {
        if (dtype == DType::ternary && (pattern & 0xAA & ~(pattern << 1)) != 0) continue;  // holds a code 10
        if (dtype == DType::fp8e5m2 && (pattern & 0x7C) == 0x7C) continue;                 // infinities, NaN payloads
        bytes.push_back(static_cast<std::byte>(pattern));
      }
    } else if constexpr (kInfo.bits == 16) {
      for (int pattern = 0; pattern < 65536; ++pattern) {
        if (dtype == DType::float16 && (pattern & 0x7C00) == 0x7C00 && (pattern & 0x03FF) != 0)
          continue;  // NaNs: bit 9
        if (dtype == DType::bfloat16 && (pattern & 0x7F80) == 0x7F80 && (pattern & 0x007F) != 0)
          continue;  // may be set
        append(bytes, static_cast<std::uint16_t>(pattern));
      }
    } else if constexpr (std::floating_point<T>) {
      for (int i = -1000; i <= 1000; ++i) append(bytes, static_cast<T>(std::ldexp(static_cast<float>(i), i % 100)));
    } else {
      for (std::int64_t code = 0; code <= 1048576; code += 97) {  // |code| <= 2^20 [D10]
        append(bytes, static_cast<T>(code));
        if constexpr (std::signed_integral<T>) append(bytes, static_cast<T>(-code));
      }
      append(bytes, static_cast<T>(1048576));
    }
  });
  return bytes;
}

TEST(Idempotency, EveryTypeSurvivesDroppingItsVersion) {
  for (const DTypeInfo& type : kDTypes) {
    const std::vector<std::byte> codes = all_codes(type.id);
    const std::size_t count = codes.size() * 8 / static_cast<std::size_t>(type.bits);
    for (const float scale : {1.0f, 0.0f, 0.0123f, 3.7e-9f, 1.0f / 3, 77.7f}) {
      WeightStore store(count);
      store.set_loaded(type.id, codes, scale);
      const std::vector<float> master = copy(store.master());
      store.set_master(master);
      ASSERT_EQ(store.find(type.id), nullptr);
      const auto version = store.morph(type.id);
      if (!version) {  // float32
        std::vector<std::byte> bytes = copy(std::as_bytes(store.master()));
        EXPECT_EQ(bytes, codes);
        continue;
      }
      EXPECT_EQ(copy(version->codes()), codes) << type.name << " scale " << scale;
      EXPECT_EQ(store.scale(type.id), scale) << type.name;
      const std::vector<float> again = store.active(type.id);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(again[i]), std::bit_cast<std::uint32_t>(master[i])) << type.name << i;
      }
    }
  }
}

TEST(Idempotency, WhateverFoundTheScales) {
  for (const DTypeInfo& type : kDTypes) {
    if (!is_scaled(type.id)) continue;
    for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile, Calibrator::mse}) {
      for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
        Scheme scheme(type.id);
        scheme.granularity = granularity;
        scheme.group = granularity == Granularity::group ? 32 : 0;
        scheme.calibrator = calibrator;
        WeightStore original(4, 96);
        original.he_randomize(9, 3);
        original.edit_master()[7] = 123.4f;
        const auto made = original.morph(scheme);

        WeightStore store(4, 96);
        store.set_loaded(scheme, made->codes(), made->scales(), made->zero_points());
        store.edit_master();  // drops the version; the explicit scales stay
        ASSERT_EQ(store.find(scheme), nullptr);
        EXPECT_EQ(copy(store.morph(scheme)->codes()), copy(made->codes()))
            << type.name << " calibrator " << static_cast<int>(calibrator) << " granularity "
            << static_cast<int>(granularity);
      }
    }
  }
}

}  // namespace
}  // namespace imago
