#include "quant/scheme.h"

#include <gtest/gtest.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "imago/error.h"
#include "testing/copies.h"

namespace imago {
namespace {

using testing::bytes_of;

Scheme by_group(Format format, int group) {
  Scheme scheme(format);
  scheme.granularity = Granularity::group;
  scheme.group = group;
  return scheme;
}

Scheme by_row(Format format) {
  Scheme scheme(format);
  scheme.granularity = Granularity::row;
  return scheme;
}

Scheme calibrated(Format format, Calibrator calibrator) {
  Scheme scheme(format);
  scheme.calibrator = calibrator;
  return scheme;
}

template <class Call>
std::string text_of_error(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckedScheme, BareTypesHaveAMeaning) {
  for (const DTypeInfo& type : kDTypes) EXPECT_EQ(checked_scheme(type.id), Scheme(type.id)) << type.name;
  for (const BlockFormatInfo& block : kBlockFormats)
    EXPECT_EQ(checked_scheme(block.id), Scheme(block.id)) << block.name;
}

TEST(CheckedScheme, GroupsAre32Or64Or128) {
  for (const int group : {32, 64, 128}) EXPECT_NO_THROW(checked_scheme(by_group(DType::int4, group))) << group;
  for (const int group : {0, 1, 16, 33, 256, -32}) {
    EXPECT_THROW(checked_scheme(by_group(DType::int4, group)), UsageError) << group;
  }
}

TEST(CheckedScheme, GroupSizeWithoutGroupsIsAnError) {
  Scheme scheme(DType::int8);
  scheme.group = 32;
  EXPECT_THROW(checked_scheme(scheme), UsageError);
  scheme.granularity = Granularity::row;
  EXPECT_THROW(checked_scheme(scheme), UsageError);
}

TEST(CheckedScheme, TypesWithoutScalesTakeNoneAnywhere) {
  for (const Format format : {Format(DType::float64), Format(DType::float32), Format(DType::float16),
                              Format(DType::bfloat16), Format(BlockFormat::q4_0), Format(BlockFormat::q6_k)}) {
    EXPECT_THROW(checked_scheme(by_row(format)), UsageError) << format.name();
    EXPECT_THROW(checked_scheme(by_group(format, 32)), UsageError) << format.name();
    EXPECT_THROW(checked_scheme(calibrated(format, Calibrator::mse)), UsageError) << format.name();
    EXPECT_THROW(checked_scheme(calibrated(format, Calibrator::percentile)), UsageError) << format.name();
  }
}

TEST(CheckedScheme, AbsmeanIsForTernaryOnly) {
  for (const DTypeInfo& type : kDTypes) {
    const Scheme scheme = calibrated(type.id, Calibrator::absmean);
    if (type.id == DType::ternary) {
      EXPECT_NO_THROW(checked_scheme(scheme));
    } else {
      EXPECT_THROW(checked_scheme(scheme), UsageError) << type.name;
    }
  }
}

TEST(CheckedScheme, PercentileIsAboveZeroAndAtMostOne) {
  Scheme scheme = calibrated(DType::int8, Calibrator::percentile);
  for (const double good : {1e-9, 0.5, 1.0}) {
    scheme.percentile = good;
    EXPECT_EQ(checked_scheme(scheme).percentile, good);
  }
  for (const double bad : {0.0, -0.1, 1.0001, std::numeric_limits<double>::quiet_NaN()}) {
    scheme.percentile = bad;
    EXPECT_THROW(checked_scheme(scheme), UsageError) << bad;
  }
}

TEST(CheckedScheme, PercentileThatNobodyReadsMakesNoDifference) {
  Scheme scheme(DType::int8);
  scheme.percentile = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(checked_scheme(scheme), Scheme(DType::int8));
}

TEST(ScaleLayout, CountsAndSpans) {
  EXPECT_EQ(scale_layout(DType::int8, 3, 64), (ScaleLayout{1, 192}));
  EXPECT_EQ(scale_layout(by_row(DType::int8), 3, 64), (ScaleLayout{3, 64}));
  EXPECT_EQ(scale_layout(by_group(DType::int8, 32), 3, 64), (ScaleLayout{6, 32}));
  EXPECT_EQ(scale_layout(DType::float16, 3, 64), (ScaleLayout{0, 0}));
  EXPECT_EQ(scale_layout(BlockFormat::q8_0, 3, 64), (ScaleLayout{0, 0}));
}

TEST(ScaleLayout, EmptyStores) {
  EXPECT_EQ(scale_layout(DType::int8, 0, 0).count, 1u) << "a checkpoint states one scale whatever the count";
  EXPECT_EQ(scale_layout(by_row(DType::int8), 5, 0).count, 0u);
  EXPECT_EQ(scale_layout(by_group(DType::int8, 32), 0, 32).count, 0u);
}

TEST(ScaleLayout, RowsMustFitGroupsAndBlocks) {
  EXPECT_THROW(scale_layout(by_group(DType::int4, 64), 2, 96), ShapeError);
  // 8 rows of 16 are 4 whole blocks, but a block may not run from one row into the next
  EXPECT_THROW(scale_layout(BlockFormat::q4_0, 8, 16), ShapeError);
  const std::string text = text_of_error([] { scale_layout(BlockFormat::q4_k, 1, 300); });
  EXPECT_NE(text.find("300"), std::string::npos) << text;
  EXPECT_NE(text.find("256"), std::string::npos) << text;
}

TEST(CheckScale, FiniteAndNotNegative) {
  for (const float good : {0.0f, 1e-45f, 1.0f, std::numeric_limits<float>::max()}) EXPECT_NO_THROW(check_scale(good));
  for (const float bad : {-1e-45f, -1.0f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    EXPECT_THROW(check_scale(bad), UsageError) << bad;
  }
}

TEST(CheckCodes, LengthIsExact) {
  for (const DTypeInfo& type : kDTypes) {
    const std::size_t bytes = packed_bytes(type.id, 13);
    EXPECT_NO_THROW(check_codes(type.id, 13, std::vector<std::byte>(bytes))) << type.name;
    EXPECT_THROW(check_codes(type.id, 13, std::vector<std::byte>(bytes - 1)), ShapeError) << type.name;
    EXPECT_THROW(check_codes(type.id, 13, std::vector<std::byte>(bytes + 1)), ShapeError) << type.name;
  }
  EXPECT_NO_THROW(check_codes(DType::int4, 0, {}));
  EXPECT_THROW(check_codes(BlockFormat::q4_0, 32, std::vector<std::byte>(17)), ShapeError);
}

TEST(CheckCodes, BitsBehindTheLastWeightAreZero) {
  EXPECT_NO_THROW(check_codes(DType::int4, 3, bytes_of({0x1F, 0x70})));
  EXPECT_THROW(check_codes(DType::int4, 3, bytes_of({0x1F, 0x71})), UsageError);
  EXPECT_NO_THROW(check_codes(DType::int4, 4, bytes_of({0x1F, 0x71})));
  EXPECT_NO_THROW(check_codes(DType::ternary, 5, bytes_of({0x71, 0xC0})));
  EXPECT_THROW(check_codes(DType::ternary, 5, bytes_of({0x71, 0xD0})), UsageError);
  EXPECT_NO_THROW(check_codes(DType::uint2, 7, bytes_of({0xFF, 0xFC})));
  EXPECT_THROW(check_codes(DType::uint2, 7, bytes_of({0xFF, 0xFD})), UsageError);
  for (unsigned count = 1; count <= 8; ++count) {
    const int last_weight = 0x100 >> count;
    EXPECT_NO_THROW(check_codes(DType::binary, count, bytes_of({last_weight}))) << count;
    if (count == 8) continue;
    EXPECT_THROW(check_codes(DType::binary, count, bytes_of({last_weight >> 1})), UsageError) << count;
  }
}

TEST(CheckCodes, TernaryHoleIsNamedByItsIndex) {
  for (std::size_t hole = 0; hole < 11; ++hole) {
    std::vector<std::byte> codes = bytes_of({0x71, 0x71, 0xC4});  // 1 -1 0 1 | 1 -1 0 1 | -1 0 1
    const unsigned shift = static_cast<unsigned>(6 - 2 * (hole % 4));
    codes[hole / 4] &= ~static_cast<std::byte>(3u << shift);
    codes[hole / 4] |= static_cast<std::byte>(2u << shift);
    EXPECT_THROW(check_codes(DType::ternary, 11, codes), UsageError);
    const std::string text = text_of_error([&] { check_codes(DType::ternary, 11, codes); });
    EXPECT_NE(text.find("weight " + std::to_string(hole) + " "), std::string::npos) << text;
  }
  EXPECT_NO_THROW(check_codes(DType::int2, 4, bytes_of({0xAA}))) << "10 is -2 in int2";
}

}  // namespace
}  // namespace imago
