// The example of docs/networks.md does what the page says.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "testing/process.h"

namespace imago {
namespace {

struct Rounded {
  char type[16];
  double similarity, before, after;
};

TEST(NetworksExample, LearnsAndSurvivesItsRounding) {
  const testing::ProcessResult result = testing::run_process({IMAGO_EXAMPLES "/example_networks"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::vector<std::string> lines;
  for (std::size_t at = 0, end; (end = result.out.find('\n', at)) != std::string::npos; at = end + 1) {
    lines.push_back(result.out.substr(at, end - at));
  }
  ASSERT_EQ(lines.size(), 4u) << result.out;
  double loss = 0, accuracy = 0;
  ASSERT_EQ(std::sscanf(lines[0].c_str(), "trained 1216 weights: loss %lf, accuracy %lf", &loss, &accuracy), 2);
  EXPECT_LE(loss, 0.1);
  EXPECT_GE(accuracy, 0.95);
  Rounded rounded[3];
  for (int i = 0; i < 3; ++i) {
    Rounded& r = rounded[i];
    ASSERT_EQ(std::sscanf(lines[1 + i].c_str(), "%15s similarity %lf, accuracy %lf, trained through the rounding %lf",
                          r.type, &r.similarity, &r.before, &r.after),
              4)
        << lines[1 + i];
  }
  EXPECT_GE(rounded[0].similarity, 0.999);
  EXPECT_GE(rounded[0].before, accuracy - 0.02);
  EXPECT_GE(rounded[1].similarity, 0.98);
  EXPECT_GE(rounded[1].after, 0.95);
  EXPECT_LT(rounded[2].similarity, rounded[1].similarity);
  EXPECT_GE(rounded[2].after, rounded[2].before + 0.1);
}

}  // namespace
}  // namespace imago
