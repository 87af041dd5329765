#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "files/datasets.h"
#include "imago/error.h"

namespace imago::files {
namespace {

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

std::vector<float> values_of(std::initializer_list<int> bytes) {
  const IdxArray array = parse_idx(bytes_of(bytes), "f");
  return {array.values.values().begin(), array.values.values().end()};
}

TEST(Idx, ReadsImagesAndLabels) {
  const auto images = bytes_of({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 255, 51, 102});
  const auto labels = bytes_of({0, 0, 8, 1, 0, 0, 0, 2, 7, 255});
  const Dataset data = join_idx(parse_idx(images, "i"), parse_idx(labels, "l"));
  EXPECT_EQ(data.x.shape(), Shape({2, 1, 2}));
  EXPECT_EQ(data.x[0], 0);
  EXPECT_EQ(data.x[1], 1);
  EXPECT_FLOAT_EQ(data.x[2], 0.2f);
  EXPECT_FLOAT_EQ(data.x[3], 0.4f);
  EXPECT_EQ(data.y.shape(), Shape({2}));
  EXPECT_EQ(data.y[0], 7);
  EXPECT_EQ(data.y[1], 255);  // labels are not scaled
}

TEST(Idx, ReadsEveryTypeBigEndian) {
  EXPECT_EQ(values_of({0, 0, 9, 1, 0, 0, 0, 2, 127, 0x80}), (std::vector<float>{127, -128}));
  EXPECT_EQ(values_of({0, 0, 11, 1, 0, 0, 0, 2, 0x01, 0x02, 0xFF, 0xFE}), (std::vector<float>{258, -2}));
  EXPECT_EQ(values_of({0, 0, 12, 1, 0, 0, 0, 2, 0, 1, 0, 0, 0xFF, 0xFF, 0xFF, 0xFD}), (std::vector<float>{65536, -3}));
  EXPECT_EQ(values_of({0, 0, 13, 1, 0, 0, 0, 1, 0xC0, 0x20, 0, 0}), (std::vector<float>{-2.5f}));
  EXPECT_EQ(values_of({0, 0, 14, 1, 0, 0, 0, 1, 0x3F, 0xF8, 0, 0, 0, 0, 0, 0}), (std::vector<float>{1.5f}));
}

std::uint64_t offset_of_error(std::initializer_list<int> bytes) {
  try {
    parse_idx(bytes_of(bytes), "f");
  } catch (const FormatError& error) {
    return error.offset();
  }
  ADD_FAILURE() << "accepted";
  return 0;
}

TEST(Idx, HostileHeadersAllocateNothing) {
  EXPECT_EQ(offset_of_error({}), 0u);
  EXPECT_EQ(offset_of_error({0, 0, 8}), 0u);
  EXPECT_EQ(offset_of_error({1, 0, 8, 1, 0, 0, 0, 1, 5}), 0u);
  EXPECT_EQ(offset_of_error({0, 0, 10, 1, 0, 0, 0, 1, 5}), 0u);  // no such type
  EXPECT_EQ(offset_of_error({0, 0, 8, 0, 5}), 0u);               // no axis
  EXPECT_EQ(offset_of_error({0, 0, 8, 200}), 3u);                // too many
  EXPECT_EQ(offset_of_error({0, 0, 8, 2, 0, 0, 0, 1, 0, 0}), 10u);
  EXPECT_EQ(offset_of_error({0, 0, 8, 1, 0, 0, 0, 0}), 4u);
  EXPECT_EQ(offset_of_error({0, 0, 8, 1, 0, 0, 0, 2, 5}), 4u);
  EXPECT_EQ(offset_of_error({0, 0, 8, 1, 0, 0, 0, 1, 5, 6}), 9u);  // more than it says
  EXPECT_EQ(offset_of_error({0, 0, 8, 1, 0xFF, 0xFF, 0xFF, 0xFF, 5}), 4u);
  // 2^32 · 2^32 elements would wrap to 0.
  EXPECT_EQ(offset_of_error({0, 0, 8, 3, 0, 0, 0, 1, 0x80, 0, 0, 0, 0x80, 0, 0, 0, 5}), 8u);
}

TEST(Idx, ImagesAndLabelsMustBeAsMany) {
  const auto three = bytes_of({0, 0, 8, 1, 0, 0, 0, 3, 1, 2, 3});
  const auto two = bytes_of({0, 0, 8, 1, 0, 0, 0, 2, 7, 9});
  EXPECT_THROW(join_idx(parse_idx(three, "i"), parse_idx(two, "l")), ShapeError);
}

}  // namespace
}  // namespace imago::files
