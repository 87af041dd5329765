// Headers from strangers: one test per rule of the table in safetensors.h, and the list of threats.md.

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

#include "files/safetensors.h"
#include "imago/error.h"
#include "testing/bounded.h"
#include "testing/temp_dir.h"

namespace imago::files {
namespace {

std::string with_length(std::uint64_t length, std::string_view rest) {
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file.append(rest);
}

std::string file_of(std::string_view header, std::size_t data_bytes) {
  return with_length(header.size(), std::string(header) + std::string(data_bytes, '\1'));
}

std::string problem_of(std::string_view file) {
  try {
    parse_safetensors(std::as_bytes(std::span(file)), "f");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

void expect_problem(std::string_view file, std::string_view text) {
  EXPECT_NE(problem_of(file).find(text), std::string::npos) << problem_of(file);
}

/// A tensor "a" of these fields, in a file with `data` bytes of data.
void expect_entry_problem(std::string_view fields, std::size_t data, std::string_view text) {
  expect_problem(file_of("{\"a\":{" + std::string(fields) + "}}", data), text);
}

TEST(HostileSafetensors, Length) {
  expect_problem("", "at least 8 bytes");
  expect_problem("1234567", "at least 8 bytes");
  expect_problem(with_length(0, "{}"), "a header of 0 bytes");
  expect_problem(with_length(1, "{}"), "a header of 1 bytes");
  expect_problem(with_length(3, "{}"), "the file ends after 2");
  expect_problem(with_length(1ull << 63, "{}"), "from 2 to 100000000");
  expect_problem(with_length(~0ull, "{}"), "from 2 to 100000000");
  expect_problem(with_length(100'000'001, "{}"), "from 2 to 100000000");
  expect_problem(with_length(100'000'000, "{}"), "cut off");
}

TEST(HostileSafetensors, HeaderText) {
  expect_problem(file_of(" {}", 0), "does not start with '{'");
  expect_problem(file_of("[]", 0), "does not start with '{'");
  expect_problem(file_of("{\"\xFF\":1}", 0), "not UTF-8");
  expect_problem(file_of(R"({"\ud800":1})", 0), "escape");
  expect_problem(file_of("{}x", 0), "after the end");
  expect_problem(file_of(std::string_view("{}\0\0\0\0\0\0", 8), 0), "after the end");
  EXPECT_EQ(problem_of(file_of("{}      ", 0)), "no error");
  EXPECT_EQ(problem_of(file_of("{}" + std::string(50'000'000, ' '), 0)), "no error");
  expect_problem(file_of("{\"a\":" + std::string(100000, '['), 0), "deeper");
  expect_problem(file_of("{", 0) + "}", "a header of 1");
}

TEST(HostileSafetensors, Names) {
  const std::string empty = R"({"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  expect_problem(file_of("{\"a\":" + empty + ",\"a\":" + empty + "}", 0), "\"a\" comes twice");
  expect_problem(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), "comes twice");
  expect_problem(file_of("{\"\":" + empty + "}", 0), "empty name");
  expect_problem(file_of(R"({"__metadata__":{"a":1}})", 0), "must be a string");
  expect_problem(file_of(R"({"__metadata__":{"a":{}}})", 0), "must be a string");
  expect_problem(file_of(R"({"__metadata__":[]})", 0), "must be an object");
  expect_problem(file_of(R"({"a":7})", 0), "tensor 'a' must be an object");
  std::string many = "{";
  for (int i = 0; i < 100000; ++i) many += "\"t" + std::to_string(i) + "\":" + empty + ",";
  many.back() = '}';
  EXPECT_EQ(problem_of(file_of(many, 0)), "no error");
}

TEST(HostileSafetensors, Types) {
  expect_entry_problem(R"("shape":[1],"data_offsets":[0,4])", 4, "tensor 'a' has no dtype");
  expect_entry_problem(R"("dtype":4,"shape":[1],"data_offsets":[0,4])", 4, "must be a string");
  expect_entry_problem(R"("dtype":"F4","shape":[3],"data_offsets":[0,1])", 1, "amid a byte");
}

TEST(HostileSafetensors, UnknownAndLowerCaseTypesAreRefusedAtTheirPlace) {
  for (const std::string type : {"f32", "Bf16", "F6_E2M3", "", "Q4", "F32 "}) {
    const std::string fields = R"("dtype":")" + type + R"(","shape":[1],"data_offsets":[0,4])";
    expect_entry_problem(fields, 4, "tensor 'a' has the dtype '" + type + "', which is not known");
    expect_entry_problem(fields, 4, "f: at byte 22: ");
  }
}

TEST(HostileSafetensors, Shapes) {
  const auto shape = [](std::string_view text) {
    return R"("dtype":"F32","data_offsets":[0,4],"shape":)" + std::string(text);
  };
  expect_entry_problem(R"("dtype":"F32","data_offsets":[0,4])", 4, "tensor 'a' has no shape");
  expect_entry_problem(shape("null"), 4, "has no shape");
  expect_entry_problem(shape("[-1]"), 4, "from 0 to");
  expect_entry_problem(shape("[1.0]"), 4, "plain digits");
  expect_entry_problem(shape("[1e0]"), 4, "plain digits");
  expect_entry_problem(shape("[9007199254740993]"), 4, "from 0 to");
  expect_entry_problem(shape("[99999999999999999999]"), 4, "from 0 to");
  expect_entry_problem(shape("\"1\""), 4, "must be an array");
  expect_entry_problem(shape("[[1]]"), 4, "must be a number");
  expect_entry_problem(shape("[\"1\"]"), 4, "must be a number");
  expect_entry_problem(shape("[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]"), 4, "more than 16");
  expect_entry_problem(shape("[4294967296,4294967296]"), 4, "more elements");
  expect_entry_problem(shape("[4294967296,4294967296,0]"), 4, "takes 0 bytes");
  expect_entry_problem(shape("[4611686018427387904]"), 4, "from 0 to");
  expect_entry_problem(shape("[2147483648,2147483648]"), 4, "too large");
}

TEST(HostileSafetensors, Offsets) {
  const auto offsets = [](std::string_view text) {
    return R"("dtype":"F32","shape":[1],"data_offsets":)" + std::string(text);
  };
  expect_entry_problem(R"("dtype":"F32","shape":[1])", 4, "tensor 'a' has no data_offsets");
  expect_entry_problem(offsets("[]"), 4, "two numbers");
  expect_entry_problem(offsets("[4]"), 4, "two numbers");
  expect_entry_problem(offsets("[0,4,4]"), 4, "two numbers");
  expect_entry_problem(offsets("[4,0]"), 4, "ends before it begins");
  expect_entry_problem(offsets("[-4,0]"), 4, "from 0 to");
  expect_entry_problem(offsets("[0,5]"), 4, "1 bytes past the end");
  expect_entry_problem(offsets("[0,9223372036854775807]"), 4, "from 0 to");
  expect_entry_problem(offsets("[0,3]"), 4, "takes 4 bytes, but its data_offsets span 3");
  expect_entry_problem(offsets("{\"a\":1}"), 4, "must be an array");
}

TEST(HostileSafetensors, Cover) {
  const auto two = [](std::string_view first, std::string_view second) {
    return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(first) +
           R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)" + std::string(second) + "}}";
  };
  EXPECT_EQ(problem_of(file_of(two("[4,8]", "[0,4]"), 8)), "no error");
  expect_problem(file_of(two("[0,4]", "[0,4]"), 8), "overlaps");
  expect_problem(file_of(two("[0,4]", "[3,7]"), 8), "tensor 'b' overlaps");
  expect_problem(file_of(two("[0,4]", "[5,9]"), 9), "1 bytes in front of tensor 'b'");
  expect_problem(file_of(two("[1,5]", "[5,9]"), 9), "1 bytes in front of tensor 'a'");
  expect_problem(file_of(two("[0,4]", "[4,8]"), 11), "3 bytes after the last tensor");
  expect_problem(file_of("{}", 1), "1 bytes after");
}

TEST(HostileSafetensors, ABoolIsZeroOrOne) {
  const testing::TempDir folder;
  std::string bytes = file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  bytes.back() = 2;
  folder.write("a", bytes);
  EXPECT_THROW(SafetensorsFile::open(folder.path() / "a").read_float32("a"), FormatError);
}

TEST(HostileSafetensors, FlippedBytesAndCutFilesGiveErrorsOrFiles) {
  const std::string good = file_of(
      R"({"__metadata__":{"k":"v"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"b":{"dtype":"F4","shape":[2],"data_offsets":[8,9]}})",
      9);
  ASSERT_EQ(problem_of(good), "no error");
  for (std::size_t length = 0; length < good.size(); ++length) {
    EXPECT_NE(problem_of(good.substr(0, length)), "no error") << length;
  }
  std::mt19937 random(5);
  for (int i = 0; i < 10000; ++i) {
    std::string flipped = good;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 + random() % 255);
    problem_of(flipped);  // anything but a FormatError ends the test
  }
  std::string noise = with_length(5'000'000, "{");
  for (int i = 0; i < 10'000'000; ++i) noise += static_cast<char>(random());
  EXPECT_NE(problem_of(noise), "no error");
}

TEST(HostileSafetensors, AnotherFileBehindTheTensorsIsNoTail) {
  const std::string good = file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4);
  ASSERT_EQ(problem_of(good), "no error");
  expect_problem(good + "PK\3\4 an archive", "15 bytes after the last tensor");
  expect_problem(good +
                     "\x7F"
                     "ELF",
                 "4 bytes after the last tensor");
}

}  // namespace
}  // namespace imago::files
