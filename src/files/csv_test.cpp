#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "files/datasets.h"
#include "imago/error.h"

namespace imago::files {
namespace {

std::vector<float> copy(const Tensor<float>& tensor) { return {tensor.values().begin(), tensor.values().end()}; }

TEST(Csv, SplitsInputsFromTargets) {
  const Dataset data = parse_csv("1,2,3\n4,5,6\n", "f", 1);
  EXPECT_EQ(data.x.shape(), Shape({2, 2}));
  EXPECT_EQ(data.y.shape(), Shape({2, 1}));
  EXPECT_EQ(copy(data.x), (std::vector<float>{1, 2, 4, 5}));
  EXPECT_EQ(copy(data.y), (std::vector<float>{3, 6}));
  const Dataset two = parse_csv("1,2,3\n4,5,6", "f", 2);
  EXPECT_EQ(copy(two.x), (std::vector<float>{1, 4}));
  EXPECT_EQ(copy(two.y), (std::vector<float>{2, 3, 5, 6}));
}

TEST(Csv, TakesWhatProgramsWrite) {
  const std::vector<float> wanted{1, -2.5f, 0.003f};
  for (const std::string text : {
           "\xEF\xBB\xBF"
           "1,-2.5,3e-3\r\n",                 // a byte order mark, as spreadsheets write it
           "a,\"b,c\",label\n1,-2.5,3e-3\n",  // a header with a separator inside quotes
           "\n \n1;-2.5;3e-3\n\n",
           "x\ty\tz\n 1 \t-2.5\t+0.003",
           "\"1\",\"-2.5\",\"0.003\"\n",
       }) {
    const Dataset data = parse_csv(text, "f", 1);
    ASSERT_EQ(data.size(), 1u) << text;
    EXPECT_EQ(data.x[0], wanted[0]) << text;
    EXPECT_EQ(data.x[1], wanted[1]) << text;
    EXPECT_EQ(data.y[0], wanted[2]) << text;
  }
}

/// The place of the complaint about `text`.
std::uint64_t offset_of_error(std::string_view text, std::size_t targets = 1) {
  try {
    parse_csv(text, "f.csv", targets);
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("f.csv"), std::string::npos);
    return error.offset();
  }
  ADD_FAILURE() << "accepted: " << text;
  return 0;
}

TEST(Csv, SaysWhereALineIsWrong) {
  EXPECT_EQ(offset_of_error(""), 0u);
  EXPECT_EQ(offset_of_error("\n\n"), 0u);
  EXPECT_EQ(offset_of_error("a,b\n"), 4u);         // a header alone
  EXPECT_EQ(offset_of_error("1,2\n3,x\n"), 6u);    // no number
  EXPECT_EQ(offset_of_error("1,2\n3,\n"), 6u);     // nothing
  EXPECT_EQ(offset_of_error("1,2\n3,4,5\n"), 8u);  // a column too many
  EXPECT_EQ(offset_of_error("1,2\n3\n"), 4u);      // one too few
  EXPECT_EQ(offset_of_error("1,nan\n"), 2u);
  EXPECT_EQ(offset_of_error("1,inf\n"), 2u);
  EXPECT_EQ(offset_of_error("1,2\n3,1e999\n"), 6u);
  EXPECT_EQ(offset_of_error("1,2\n3,4x\n"), 6u);
  EXPECT_EQ(offset_of_error("1\n2\n"), 0u);  // no input beside the target
  EXPECT_EQ(offset_of_error("1,2\n", 2), 2u);
  EXPECT_THROW(parse_csv("1,2\n", "f", 0), UsageError);
}

TEST(Csv, ClassNumbersBecomeOneHotRows) {
  Dataset data = parse_csv("1,2\n1,0\n", "f", 1);
  make_one_hot(data);
  EXPECT_EQ(data.y.shape(), Shape({2, 3}));
  EXPECT_EQ(copy(data.y), (std::vector<float>{0, 0, 1, 1, 0, 0}));
  for (const std::string_view text : {"1,-1\n", "1,0.5\n", "1,1e30\n", "1,1e10\n", "1,399999999\n"}) {
    Dataset bad = parse_csv(text, "f", 1);
    EXPECT_THROW(make_one_hot(bad), UsageError) << text;
  }
  Dataset wide = parse_csv("1,0,1\n", "f", 2);
  EXPECT_THROW(make_one_hot(wide), ShapeError);
}

}  // namespace
}  // namespace imago::files
