#include "files/base64.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "imago/error.h"

namespace imago::files {
namespace {

std::string encode(std::string_view bytes) {
  std::string text(base64_length(bytes.size()), '?');
  encode_base64(std::as_bytes(std::span(bytes)), text);
  return text;
}

std::string decode(std::string_view text) {
  const Base64Result result = decode_base64(text);
  if (result.wrong != std::string_view::npos) return "wrong at " + std::to_string(result.wrong);
  return {reinterpret_cast<const char*>(result.bytes.data()), result.bytes.size()};
}

TEST(Base64, TestVectorsOfTheRfc) {
  const std::pair<const char*, const char*> vectors[] = {{"", ""},
                                                         {"f", "Zg=="},
                                                         {"fo", "Zm8="},
                                                         {"foo", "Zm9v"},
                                                         {"foob", "Zm9vYg=="},
                                                         {"fooba", "Zm9vYmE="},
                                                         {"foobar", "Zm9vYmFy"}};
  for (const auto& [plain, text] : vectors) {
    EXPECT_EQ(encode(plain), text);
    EXPECT_EQ(decode(text), plain);
  }
  EXPECT_EQ(encode("\xFB\xFF\xBF"), "+/+/");
}

TEST(Base64, LongPayloadsComeBack) {
  std::mt19937 random(1);
  for (const std::size_t size : {1000u, 49151u, 49152u, 49153u, 700001u}) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    EXPECT_TRUE(decode(encode(bytes)) == bytes) << size;
  }
}

TEST(Base64, IsStrict) {
  EXPECT_EQ(decode("Zg="), "wrong at 2");
  EXPECT_EQ(decode("Zg"), "wrong at 2") << "padding is missing";
  EXPECT_EQ(decode("Z"), "wrong at 1");
  EXPECT_EQ(decode("Zm9vZ"), "wrong at 5");
  EXPECT_EQ(decode("===="), "wrong at 0");
  EXPECT_EQ(decode("Z==="), "wrong at 1");
  EXPECT_EQ(decode("Zg==Zg=="), "wrong at 2") << "padding in the middle";
  EXPECT_EQ(decode("Zm=v"), "wrong at 2");
  EXPECT_EQ(decode("Zm-_"), "wrong at 2") << "the other alphabet";
  EXPECT_EQ(decode("Zm v"), "wrong at 2");
  EXPECT_EQ(decode("Zh=="), "wrong at 1") << "bits that belong to no byte";
  EXPECT_EQ(decode("Zm9="), "wrong at 2");
  EXPECT_EQ(decode(std::string("Zm\0v", 4)), "wrong at 2");
}

TEST(Base64, FindsTheFirstWrongCharacterWhicheverThreadMeetsIt) {
  std::string text = encode(std::string(3000000, 'x'));
  text[3999999] = '!';
  EXPECT_EQ(decode(text), "wrong at 3999999");
  text[1234567] = '!';
  EXPECT_EQ(decode(text), "wrong at 1234567");
  text[2] = '!';
  EXPECT_EQ(decode(text), "wrong at 2");
}

TEST(Base64, SkipsLineBreaksAndNothingElse) {
  EXPECT_EQ(decode("Zm9v\r\nYm\nFy\n"), "foobar");
  EXPECT_EQ(decode("\nZg=\r="), "f");
  EXPECT_EQ(decode("Zm9v\n\nYm!y"), "wrong at 8");
}

TEST(Base64, OfAJsonStringNamesTheField) {
  const JsonDocument good = JsonDocument::parse(R"("Zm9v\nYmFy")", "f");
  EXPECT_EQ(decode_base64(good.root(), "weights").size(), 6u);
  const JsonDocument bad = JsonDocument::parse(R"("Zm9vYm!y")", "f");
  try {
    decode_base64(bad.root(), "weights");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_STREQ(error.what(), "f: at byte 0: weights is not base64: wrong at character 6 of 8");
  }
}

}  // namespace
}  // namespace imago::files
