#include "lm/text_stream.h"

#include <gtest/gtest.h>

#include "imago/error.h"

namespace imago::lm {
namespace {

/// What comes out of `text` cut into pieces of `piece` bytes, and whether a stop string ended it.
std::pair<std::string, bool> streamed(const std::string& text, std::size_t piece, std::vector<std::string> stops) {
  TextStream stream(std::move(stops));
  std::string out;
  for (std::size_t at = 0; at < text.size(); at += piece) out += stream.push(text.substr(at, piece));
  return {out + stream.finish(), stream.stopped()};
}

TEST(TextStream, EndsBeforeTheStopStringHoweverTheTextIsCut) {
  struct Case {
    std::string text;
    std::vector<std::string> stops;
    std::string wanted;
    bool stopped;
  };
  const Case cases[] = {
      {"one two three", {"two"}, "one ", true},
      {"one two three", {"four"}, "one two three", false},
      {"aaab", {"aab"}, "a", true},  // the stop starts inside what looked like it
      {"User: hi\nUser:", {"\nUser:"}, "User: hi", true},
      {"abc", {"abc", "b"}, "a", true},  // the one that is complete first
      {"abc", {"c", "bc"}, "a", true},   // of two that end together the longer
      {"xyz", {"xyz"}, "", true},
      {"<|im_end", {"<|im_end|>"}, "<|im_end", false},  // never completed: comes out at the end
      {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac!", {"\xe2\x82\xac"}, "gr\xc3\xbc\xc3\x9f ", true},
      {"", {"x"}, "", false},
  };
  for (const Case& c : cases) {
    for (std::size_t piece = 1; piece <= c.text.size() + 1; ++piece) {
      const auto [out, stopped] = streamed(c.text, piece, c.stops);
      EXPECT_EQ(out, c.wanted) << c.text << " in pieces of " << piece;
      EXPECT_EQ(stopped, c.stopped) << c.text << " in pieces of " << piece;
    }
  }
}

TEST(TextStream, HoldsBackNoMoreThanMayBecomeAStopString) {
  TextStream stream({"stop", "ping"});
  EXPECT_EQ(stream.push("a st"), "a ");
  EXPECT_EQ(stream.push("ep"), "ste");  // "p" may start "ping"
  EXPECT_EQ(stream.push("o"), "po");
  EXPECT_EQ(stream.push(" sto"), " ");
  EXPECT_EQ(stream.push("p it"), "");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.push("more"), "");
  EXPECT_EQ(stream.finish(), "");
}

TEST(TextStream, HalfCharactersWait) {
  TextStream stream({});
  EXPECT_EQ(stream.push("\xe2\x82"), "");
  EXPECT_EQ(stream.push("\xac"), "\xe2\x82\xac");
  EXPECT_EQ(stream.push("\xe2"), "");
  EXPECT_EQ(stream.finish(), "\xef\xbf\xbd");
}

TEST(TextStream, AnEmptyStopStringIsRefused) { EXPECT_THROW(TextStream({"a", ""}), UsageError); }

TEST(TextStream, ManyLongStopStringsCostLittle) {
  std::vector<std::string> stops;
  for (int i = 0; i < 1000; ++i) stops.push_back(std::string(100, 'a') + std::to_string(i));
  const auto [out, stopped] = streamed(std::string(2000, 'a') + "999", 7, stops);
  EXPECT_EQ(out, std::string(1900, 'a'));
  EXPECT_TRUE(stopped);
}

}  // namespace
}  // namespace imago::lm
