#include "base/checked.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace imago {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

static_assert(checked_add<std::uint64_t>(2, 3, "sum") == 5, "usable at compile time");

TEST(Checked, AddsUpToTheLastValue) {
  EXPECT_EQ(checked_add<std::uint64_t>(kMax - 1, 1, "sum"), kMax);
  EXPECT_THROW(checked_add<std::uint64_t>(kMax, 1, "sum"), ShapeError);
  EXPECT_EQ(checked_add<std::uint8_t>(200, 55, "sum"), 255);
  EXPECT_THROW(checked_add<std::uint8_t>(200, 56, "sum"), ShapeError);
}

TEST(Checked, MultipliesUpToTheLastValue) {
  EXPECT_EQ(checked_mul<std::uint64_t>(kMax, 1, "product"), kMax);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMax, 0, "product"), 0u);
  EXPECT_EQ(checked_mul<std::uint64_t>(kMax / 3, 3, "product"), kMax / 3 * 3);
  EXPECT_THROW(checked_mul<std::uint64_t>(kMax / 3 + 1, 3, "product"), ShapeError);
  EXPECT_THROW(checked_mul<std::uint64_t>(std::uint64_t{1} << 32, std::uint64_t{1} << 32, "product"), ShapeError);
}

TEST(Checked, AlignsUp) {
  EXPECT_EQ(checked_align_up<std::uint64_t>(0, 64, "offset"), 0u);
  EXPECT_EQ(checked_align_up<std::uint64_t>(1, 64, "offset"), 64u);
  EXPECT_EQ(checked_align_up<std::uint64_t>(64, 64, "offset"), 64u);
  EXPECT_EQ(checked_align_up<std::uint64_t>(65, 64, "offset"), 128u);
  EXPECT_THROW(checked_align_up<std::uint64_t>(kMax - 62, 64, "offset"), ShapeError);
}

TEST(Checked, CastsOnlyWhatFits) {
  EXPECT_EQ((checked_cast<std::int8_t>(127, "value")), 127);
  EXPECT_THROW((checked_cast<std::int8_t>(128, "value")), ShapeError);
  EXPECT_EQ((checked_cast<std::int8_t>(-128, "value")), -128);
  EXPECT_THROW((checked_cast<std::int8_t>(-129, "value")), ShapeError);
  EXPECT_THROW((checked_cast<std::uint64_t>(-1, "value")), ShapeError) << "same bits, other sign";
  EXPECT_THROW((checked_cast<std::int64_t>(kMax, "value")), ShapeError) << "same bits, other sign";
  EXPECT_EQ((checked_cast<std::int64_t>(kMax >> 1, "value")), std::numeric_limits<std::int64_t>::max());
}

TEST(Checked, TheErrorNamesTheSubject) {
  try {
    checked_mul<std::uint64_t>(kMax, 2, "tensor 'a'");
    FAIL() << "no error";
  } catch (const ShapeError& error) {
    EXPECT_STREQ(error.what(), "tensor 'a' is too large");
    EXPECT_EQ(error.kind(), ErrorKind::shape);
  }
}

}  // namespace
}  // namespace imago
