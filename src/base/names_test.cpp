#include "base/names.h"

#include <gtest/gtest.h>

namespace imago {
namespace {

TEST(NearNames, TheNearestComeFirst) {
  const std::vector<std::string> names = {"blk.0.attn_k.weight", "blk.0.attn_q.weight", "blk.1.attn_q.weight",
                                          "token_embd.weight"};
  EXPECT_EQ(near_names("blk.0.attn_q.wieght", names, 2),
            (std::vector<std::string>{"blk.0.attn_q.weight", "blk.0.attn_k.weight"}));
  EXPECT_EQ(near_names("token_embd", names, 1), (std::vector<std::string>{"token_embd.weight"}));
  EXPECT_EQ(near_names("", names, 9).size(), 4u);
  EXPECT_TRUE(near_names(std::string(100000, 'x'), names, 1).empty()) << "no hours for a hostile name";
}

}  // namespace
}  // namespace imago
