#include <gtest/gtest.h>

#include "imago/lm.h"

namespace imago {
namespace {

TEST(Utf8Stream, GivesWholeCharactersWhereverTheyAreCut) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";  // 1, 2, 3 and 4 bytes
  for (std::size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Stream stream;
    std::string joined;
    for (std::size_t at = 0; at < text.size(); at += piece) {
      const std::string out = stream.push(text.substr(at, piece));
      EXPECT_TRUE(out.empty() || (static_cast<unsigned char>(out.front()) & 0xc0) != 0x80) << "starts amid a character";
      joined += out;
    }
    EXPECT_EQ(joined, text) << piece;
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(Utf8Stream, HalfACharacterAtTheEndIsReplaced) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("ok\xe2\x82"), "ok");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST(Utf8Stream, StrayBytesPass) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("\x80\xff!"), "\x80\xff!");
  EXPECT_EQ(stream.finish(), "");
}

}  // namespace
}  // namespace imago
