#include "files/json.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "imago/error.h"

namespace imago::files {
namespace {

JsonDocument parse(std::string_view text, const JsonOptions& options = {}) {
  return JsonDocument::parse(text, "f.json", options);
}

/// "OFFSET: problem" of what is thrown.
template <class Body>
std::string problem_of(Body body) {
  try {
    body();
  } catch (const FormatError& error) {
    const std::string what = error.what();
    const std::string prefix = "f.json: at byte ";
    EXPECT_TRUE(what.starts_with(prefix)) << what;
    return what.substr(prefix.size());
  }
  return "no error";
}
std::string problem_of(const char* text) {
  return problem_of([&] { parse(text); });
}

TEST(Json, ReadsEveryKindOfValue) {
  const JsonDocument document =
      parse(R"( {"a": [1, -2.5e3, true, false, null, "x", [], {}], "b": {"c": "d"}, "": 7} )");
  const JsonValue a = *document.root().find("a");
  std::vector<JsonValue> values;
  for (const JsonMember& element : a.elements("a")) values.push_back(element.value);
  ASSERT_EQ(values.size(), 8u);
  EXPECT_EQ(values[0].integer("n", 0, 5), 1);
  EXPECT_EQ(values[1].number("n"), -2500);
  EXPECT_EQ(values[1].integral("n", -9999, 0), -2500);
  EXPECT_TRUE(values[2].boolean("b"));
  EXPECT_FALSE(values[3].boolean("b"));
  EXPECT_TRUE(values[4].is_null());
  EXPECT_EQ(values[5].string("s"), "x");
  EXPECT_EQ(values[6].elements("e").size(), 0u);
  EXPECT_EQ(values[7].members("e").size(), 0u);
  EXPECT_EQ(document.root().find("b")->find("c")->string("c"), "d");
  EXPECT_EQ(document.root().find("")->integer("n", 0, 9), 7);
  EXPECT_FALSE(document.root().find("c"));
  EXPECT_EQ(document.root().members("all").size(), 3u);
}

TEST(Json, NullIsAbsent) { EXPECT_FALSE(parse(R"({"a":null})").root().find("a")); }

TEST(Json, GivesSourceAndPlace) {
  const JsonDocument document = parse(R"({"a":[1,{"b":[ ] } ], "c" : [[]]})", {.base = 100});
  EXPECT_EQ(document.root().find("a")->source(), R"([1,{"b":[ ] } ])");
  EXPECT_EQ(document.root().find("c")->source(), "[[]]");
  EXPECT_EQ(document.root().find("a")->offset(), 105u);
  EXPECT_EQ(document.root().source(), R"({"a":[1,{"b":[ ] } ], "c" : [[]]})");
}

TEST(Json, StringsAreNotCopiedUntilAskedFor) {
  const std::string text = "[\"" + std::string(1000, 'A') + "\"]";
  const JsonDocument document = parse(text);
  for (const JsonMember& element : document.root().elements("all")) {
    EXPECT_EQ(element.value.raw_string("s").data(), text.data() + 2);
    EXPECT_EQ(element.value.raw_string("s").size(), 1000u);
  }
}

TEST(Json, ResolvesEscapes) {
  const JsonDocument document = parse(R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00", "é€😀"])");
  std::vector<std::string> strings;
  for (const JsonMember& element : document.root().elements("all")) strings.push_back(element.value.string("s"));
  EXPECT_EQ(strings[0], "\"\\/\b\f\n\r\t");
  EXPECT_EQ(strings[1], "Aé€😀");
  EXPECT_EQ(strings[2], "é€😀");
}

TEST(Json, RefusesWhatIsNoJson) {
  EXPECT_EQ(problem_of(""), "0: the JSON text ends too early: the file may be cut off");
  EXPECT_EQ(problem_of("  "), "2: the JSON text ends too early: the file may be cut off");
  EXPECT_EQ(problem_of("nul"), "0: a JSON value was expected");
  EXPECT_EQ(problem_of("NaN"), "0: a JSON value was expected");
  EXPECT_EQ(problem_of("[1] x"), "4: there is text after the end of the JSON value");
  EXPECT_EQ(problem_of("[1,]"), "3: a JSON value was expected");
  EXPECT_EQ(problem_of("[,1]"), "1: a JSON value was expected");
  EXPECT_EQ(problem_of("[1 2]"), "3: ',' or ']' was expected");
  EXPECT_EQ(problem_of("[1}"), "2: ',' or ']' was expected");
  EXPECT_EQ(problem_of(R"({"a" 1})"), "5: expected ':' after the key");
  EXPECT_EQ(problem_of(R"({a:1})"), "1: a key in quotes was expected");
  EXPECT_EQ(problem_of(R"({"a":1,})"), "7: a key in quotes was expected");
  EXPECT_EQ(problem_of(R"({"a":1)"), "6: the JSON text ends too early: the file may be cut off");
  EXPECT_EQ(problem_of("[\"abc"), "1: a string that never ends: the file may be cut off");
  EXPECT_EQ(problem_of("[\"abc\\"), "5: a wrong escape in a string");
  for (const char* number : {"01", "-", "1.", ".5", "1e", "1e+", "+1", "--1", "-01", "0x10", "1.e5"}) {
    EXPECT_NE(problem_of(number), "no error") << number;
  }
}

TEST(Json, RefusesBadStrings) {
  EXPECT_EQ(problem_of("\"a\nb\""), "2: a control character in a string");
  EXPECT_EQ(problem_of(R"("ab\x")"), "3: a wrong escape in a string");
  EXPECT_EQ(problem_of(R"("\u12g4")"), "1: a wrong escape in a string");
  EXPECT_EQ(problem_of(R"("\ud800")"), "1: a wrong escape in a string") << "half a pair";
  EXPECT_EQ(problem_of(R"("\ud800\u0041")"), "1: a wrong escape in a string");
  EXPECT_EQ(problem_of(R"("\udc00")"), "1: a wrong escape in a string");
  for (const char* bytes : {"\"\x80\"", "\"\xC0\xAF\"", "\"\xE0\x80\x80\"", "\"\xED\xA0\x80\"", "\"\xF4\x90\x80\x80\"",
                            "\"\xF5\x80\x80\x80\"", "\"\xE2\x82\"", "\"1234567\xFF\"", "\"\xE2"}) {
    EXPECT_NE(problem_of(bytes).find("not UTF-8"), std::string::npos) << bytes;
  }
}

TEST(Json, FindsSpecialBytesAtEveryPlaceOfAWord) {
  for (std::size_t length = 0; length < 40; ++length) {
    const std::string plain(length, 'a');
    EXPECT_EQ(parse("\"" + plain + "\"").root().string("s"), plain);
    EXPECT_EQ(parse("\"" + plain + "\\n\"").root().string("s"), plain + "\n");
    EXPECT_EQ(parse("\"" + plain + "é\"").root().string("s"), plain + "é");
    EXPECT_EQ(problem_of([&] { parse("\"" + plain + "\x1f\""); }),
              std::to_string(length + 1) + ": a control character in a string");
  }
}

TEST(Json, ADuplicateKeyIsAnErrorAndSaysWhere) {
  EXPECT_EQ(problem_of(R"({"a":1,"b":2,"a":3})"), "13: the key \"a\" comes twice in one object");
  EXPECT_EQ(problem_of(R"({"a":1,"\u0061":3})"), "7: the key \"a\" comes twice in one object");
  EXPECT_EQ(problem_of(R"([{"x":{"a":1,"a":1}}])"), "13: the key \"a\" comes twice in one object");
  EXPECT_EQ(problem_of(R"({"a":{"a":1},"b":{"a":1}})"), "no error");
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"key" + std::to_string(i) + "\":1,";
  EXPECT_EQ(problem_of([&] { parse(many + "\"last\":1}"); }), "no error");
  EXPECT_NE(problem_of([&] { parse(many + "\"key777\":1}"); }).find("\"key777\" comes twice"), std::string::npos);
}

TEST(Json, DepthIsLimitedWithoutRecursion) {
  const std::string deep = std::string(1000000, '[');
  EXPECT_EQ(problem_of([&] { parse(deep); }), "64: arrays and objects are nested deeper than 64");
  EXPECT_EQ(problem_of([&] { parse(std::string(64, '[') + std::string(64, ']')); }), "no error");
  EXPECT_EQ(problem_of([&] { parse("[[[]]]", {.max_depth = 2}); }), "2: arrays and objects are nested deeper than 2");
}

TEST(Json, NumbersOutOfRangeAreErrorsWhenAskedFor) {
  EXPECT_EQ(problem_of([] { parse("1e999").root().number("x"); }), "0: x is a number out of range");
  EXPECT_EQ(problem_of([] { parse(std::string(1000000, '9')).root().integer("x", 0, 9); }), "0: x must be from 0 to 9");
  EXPECT_EQ(problem_of([] { parse("[12]").root().number("x"); }), "0: x must be a number, not an array");
  EXPECT_EQ(problem_of([] { parse("12").root().integer("x", 0, 9); }), "0: x must be from 0 to 9, not 12");
  EXPECT_EQ(problem_of([] { parse("1.0").root().integer("x", 0, 9); }), "0: x must be a whole number in plain digits");
  EXPECT_EQ(problem_of([] { parse("1.5").root().integral("x", 0, 9); }), "0: x must be a whole number, not 1.5");
  EXPECT_EQ(problem_of([] { parse("1e300").root().integral("x", 0, 9); }), "0: x must be from 0 to 9");
  EXPECT_EQ(parse("9223372036854775807").root().integer("x", 0, INT64_MAX), INT64_MAX);
}

}  // namespace
}  // namespace imago::files
