#include "files/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "files/json.h"
#include "imago/error.h"

namespace imago::files {
namespace {

TEST(JsonWriter, Indents) {
  StringSink sink;
  JsonWriter json(sink, JsonStyle::indented);
  json.begin_object();
  json.key("a");
  json.value(1);
  json.key("b");
  json.begin_array();
  json.end_array();
  json.key("c");
  json.begin_array();
  json.begin_object();
  json.key("d");
  json.value(true);
  json.end_object();
  json.value("x");
  json.end_array();
  json.end_object();
  EXPECT_EQ(sink.text(),
            "{\n  \"a\": 1,\n  \"b\": [],\n  \"c\": [\n    {\n      \"d\": true\n    },\n    \"x\"\n  ]\n}");
}

TEST(JsonWriter, OrLeavesAllSpacesOut) {
  StringSink sink;
  JsonWriter json(sink, JsonStyle::compact);
  json.begin_object();
  json.key("a");
  json.begin_array();
  json.value(std::int64_t{-5});
  json.value(0.5);
  json.base64(std::as_bytes(std::span("foo", 3)));
  json.raw("{\"z\":null}");
  json.end_array();
  json.key("b");
  json.begin_object();
  json.end_object();
  json.end_object();
  EXPECT_EQ(sink.text(), R"({"a":[-5,0.5,"Zm9v",{"z":null}],"b":{}})");
}

// Expected texts are those that docs/formats/checkpoint.md describes, written down by hand.
TEST(JsonWriter, WritesNumbersAsTheOriginalDoes) {
  EXPECT_EQ(format_number(1.0), "1");
  EXPECT_EQ(format_number(-0.0), "-0");
  EXPECT_EQ(format_number(0.0), "0");
  EXPECT_EQ(format_number(0.1), "0.1");
  EXPECT_EQ(format_number(0.1f), "0.1");
  EXPECT_EQ(format_number(static_cast<double>(0.1f)), "0.10000000149011612");
  EXPECT_EQ(format_number(1000000.0), "1000000");
  EXPECT_EQ(format_number(123.456), "123.456");
  EXPECT_EQ(format_number(1e20), "100000000000000000000");
  EXPECT_EQ(format_number(1.2345678901234567e20), "123456789012345670000");
  EXPECT_EQ(format_number(1e21), "1e+21");
  EXPECT_EQ(format_number(-1.5e300), "-1.5e+300");
  EXPECT_EQ(format_number(0.000001), "0.000001");
  EXPECT_EQ(format_number(0.00000099), "9.9e-7");
  EXPECT_EQ(format_number(1.25e-10), "1.25e-10");
  EXPECT_EQ(format_number(5e-324), "5e-324");
  EXPECT_EQ(format_number(1e-6f), "0.000001") << "compared as float32";
  EXPECT_EQ(format_number(1e21f), "1e+21");
  EXPECT_EQ(format_number(3.4028235e38f), "3.4028235e+38");
  EXPECT_EQ(format_number(1e-45f), "1e-45");
  EXPECT_THROW(format_number(std::nan("")), UsageError);
  EXPECT_THROW(format_number(std::numeric_limits<float>::infinity()), UsageError);
}

TEST(JsonWriter, NumbersReadBackToTheSameBits) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const double number = std::bit_cast<double>(random());
    if (!std::isfinite(number) || std::abs(number) < std::numeric_limits<double>::min()) continue;
    const std::string text = format_number(number);
    EXPECT_EQ(JsonDocument::parse(text, "f").root().number("x"), number) << text;
    const float narrow = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(narrow)) continue;
    EXPECT_EQ(static_cast<float>(JsonDocument::parse(format_number(narrow), "f").root().number("x")), narrow);
  }
}

TEST(JsonWriter, EscapesStrings) {
  EXPECT_EQ(quote_json("a\"\\\n\r\t\b\x1f\x7f"), "\"a\\\"\\\\\\n\\r\\t\\u0008\\u001f\x7f\"");
  EXPECT_EQ(quote_json("<&>"), R"("\u003c\u0026\u003e")");
  EXPECT_EQ(quote_json("\u2028\u2029é€😀"), "\"\\u2028\\u2029é€😀\"");
  EXPECT_THROW(quote_json("\xFF"), UsageError);
  const std::string all = "\x01\x02<>&\"\\/é€😀\u2028";
  EXPECT_EQ(JsonDocument::parse(quote_json(all), "f").root().string("s"), all);
}

}  // namespace
}  // namespace imago::files
