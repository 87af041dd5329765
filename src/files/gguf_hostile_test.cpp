// Files from strangers: one test per rule of the table in gguf.h, numbered as the list of threats. Splits have a file
// of their own.

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <random>

#include "files/gguf.h"
#include "imago/error.h"
#include "testing/bounded.h"
#include "testing/gguf_bytes.h"
#include "testing/temp_dir.h"

namespace imago::files {
namespace {

using testing::gguf_array;
using testing::gguf_pair;
using testing::gguf_string;
using testing::GgufBytes;
using testing::GgufTensorBytes;
using testing::raw;

constexpr std::uint64_t k63 = std::uint64_t{1} << 63;
constexpr std::uint64_t kAll = ~std::uint64_t{0};
constexpr std::uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

std::string problem_of(std::string_view file) {
  try {
    parse_gguf(std::as_bytes(std::span(file)), "f");
  } catch (const FormatError& error) {
    return error.what();
  }
  return "no error";
}

void expect_problem(std::string_view file, std::string_view text) {
  EXPECT_NE(problem_of(file).find(text), std::string::npos) << problem_of(file);
}
void expect_problem(const GgufBytes& file, std::string_view text) { expect_problem(file.bytes(), text); }

void expect_pair_problem(std::string pair, std::string_view text) {
  expect_problem(GgufBytes{.pairs = {std::move(pair)}}, text);
}
void expect_value_problem(std::uint32_t type, std::string_view value, std::string_view text) {
  expect_pair_problem(gguf_pair("k", type, value), text);
}
void expect_tensor_problem(GgufTensorBytes tensor, std::string_view text) {
  expect_problem(GgufBytes{.tensors = {std::move(tensor)}}, text);
}

TEST(HostileGguf, TheFileToMutateIsGood) {
  EXPECT_EQ(problem_of(GgufBytes{}.bytes()), "no error");
  EXPECT_EQ(problem_of(GgufBytes{.version = 2}.bytes()), "no error");
}

TEST(HostileGguf, Case1To3Magic) {
  expect_problem("", "the file is empty");
  for (const std::string_view start : {"G", "GG", "GGU"}) expect_problem(start, "cut off in its first bytes");
  expect_problem("GGUF", "the version needs 4 bytes, but the file ends after 0");
  expect_problem(GgufBytes{.magic = "GGML"}, "none of GGUF");
  expect_problem(GgufBytes{.magic = "ggjt"}, "none of GGUF");
  expect_problem(GgufBytes{.magic = "tjgg"}, "GGJT file, which GGUF has replaced");
  expect_problem("PK\3\4 and so on", "ZIP archive");
  expect_problem("<!DOCTYPE html><html>404</html>", "HTML page");
  expect_problem("version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull");
  expect_problem("{\"layers\":[]}", "not a GGUF file but a JSON text");
  expect_problem(std::string("\2\0\0\0\0\0\0\0{}", 10), "not a GGUF file but safetensors");
}

TEST(HostileGguf, Case4Versions) {
  for (const std::uint32_t version : {0u, 4u, 5u, 99u, ~0u}) {
    expect_problem(GgufBytes{.version = version}, "is not known: 2 and 3 are");
  }
  expect_problem(GgufBytes{.version = 1}, "version 1");
  expect_problem(GgufBytes{.version = 0x03000000}, "big-endian");
  expect_problem(GgufBytes{.version = 0x02000000}, "big-endian");
  expect_problem(GgufBytes{.magic = "FUGG"}, "big-endian");
}

TEST(HostileGguf, Case5CutInTheCounts) {
  const std::string good = GgufBytes{}.bytes();
  expect_problem(good.substr(0, 11), "the number of tensors needs 8 bytes, but the file ends after 3");
  expect_problem(good.substr(0, 16), "the number of metadata entries needs 8 bytes, but the file ends after 0");
}

TEST(HostileGguf, Case6And7Counts) {
  for (const std::uint64_t count :
       {k63, kAll, (std::uint64_t{1} << 60), std::uint64_t{kMaxGgufEntries} + 1, kAll / sizeof(GgufTensor) + 1}) {
    expect_problem(GgufBytes{.tensor_count = count}, "at most 1048576 are allowed");
    expect_problem(GgufBytes{.pair_count = count}, "at most 1048576 are allowed");
  }
  expect_problem(GgufBytes{.tensor_count = kMaxGgufEntries}, "1048576 tensors take at least 25 bytes each");
  expect_problem(GgufBytes{.pair_count = kMaxGgufEntries}, "1048576 metadata entries take at least 14 bytes each");
  expect_problem(GgufBytes{.tensor_count = 2, .data_bytes = 0}, "2 tensors take at least 25 bytes each");
}

TEST(HostileGguf, Case8And9Keys) {
  expect_pair_problem(gguf_pair("", kU32, raw(1u)), "key 0 of the metadata is empty");
  expect_pair_problem(raw(kAll) + "k" + raw(kU32) + raw(1u), "a key needs 18446744073709551615 bytes");
  expect_problem(GgufBytes{.pairs = {gguf_pair("k", kU32, raw(1u)), raw(k63)}}, "a key needs");
  const std::string one_more = "GGUF" + raw(3u) + raw(std::uint64_t{0}) + raw(std::uint64_t{1});
  expect_problem(one_more + raw(std::uint64_t{7}) + "123456", "a key needs 7 bytes, but the file ends after 6");
  expect_pair_problem(gguf_pair(std::string(65536, 'k'), kU32, raw(1u)), "at most 65535 are allowed");
  EXPECT_EQ(problem_of(GgufBytes{.pairs = {gguf_pair(std::string(65535, 'k'), kU32, raw(1u))}}.bytes()), "no error");
  expect_pair_problem(gguf_pair(std::string_view("a\0b", 3), kU32, raw(1u)), "control character 0");
  expect_pair_problem(gguf_pair("a\x1B[2J", kU32, raw(1u)), "control character 27");
  expect_pair_problem(gguf_pair("a\x7F", kU32, raw(1u)), "control character 127");
  expect_pair_problem(gguf_pair("ab\xFF", kU32, raw(1u)), "is not UTF-8 at its byte 2");
  expect_pair_problem(gguf_pair("\xC0\x80", kU32, raw(1u)), "is not UTF-8");
}

TEST(HostileGguf, Case10KeysThatComeTwice) {
  expect_problem(GgufBytes{.pairs = {gguf_pair("k", kU32, raw(1u)), gguf_pair("k", kU32, raw(1u))}},
                 "the key 'k' comes twice");
  expect_problem(GgufBytes{.pairs = {gguf_pair("k", kU32, raw(1u)), gguf_pair("j", kU32, raw(1u)),
                                     gguf_pair("k", kF32, raw(1.0f))}},
                 "the key 'k' comes twice");
}

TEST(HostileGguf, Case11ValueTypes) {
  for (const std::uint32_t type : {13u, 14u, 255u, ~0u}) {
    expect_value_problem(type, raw(1u), "0 to 12 are known");
  }
}

TEST(HostileGguf, Case12Strings) {
  expect_value_problem(kString, raw(std::uint64_t{1} << 30), "a string needs 1073741824 bytes");
  expect_value_problem(kString, raw(kAll), "a string needs");
  expect_value_problem(kString, raw(k63), "a string needs");
}

TEST(HostileGguf, Case13And14Arrays) {
  expect_value_problem(kArray, gguf_array(13, 1, "a"), "is of type 13");
  expect_value_problem(kArray, gguf_array(~0u, 1, "a"), "0 to 12 are known");
  for (const std::uint32_t type : {0u, kU32, kBool, kString, 10u, 12u}) {
    for (const std::uint64_t count : {std::uint64_t{1} << 60, std::uint64_t{1} << 61, k63, kAll, kAll / 4 + 1}) {
      expect_value_problem(kArray, gguf_array(type, count, "abcd"), "for which the file is too short");
    }
  }
  expect_value_problem(kArray, gguf_array(kString, 2, gguf_string("a") + raw(kAll)), "a string of an array needs");

  const std::string_view nested = "'k' is an array of arrays: elements must be numbers, bools or strings";
  expect_value_problem(kArray, gguf_array(kArray, 0, ""), nested);
  expect_value_problem(kArray, gguf_array(kArray, 1, gguf_array(0, 1, "a")), nested);
  expect_value_problem(kArray, gguf_array(kArray, kAll, "abcd"), nested);
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += raw(kArray) + raw(std::uint64_t{1});
  expect_value_problem(kArray, deep, nested);
}

TEST(HostileGguf, Case14ManyEmptyStrings) {
  // Files hold 2^24 strings in arrays; files of that size would make a slow test, so the limit is lowered.
  EXPECT_EQ(GgufBudget{}.strings, std::size_t{1} << 24);
  GgufBudget budget{.strings = 5};
  const auto read = [&](std::uint32_t type, std::uint64_t count, std::size_t bytes_each) -> std::string {
    const std::string value = raw(kArray) + gguf_array(type, count, std::string(count * bytes_each, '\0'));
    ByteReader reader(std::as_bytes(std::span(value)), "f");
    try {
      read_gguf_value(reader, "k", budget);
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(read(kString, 6, 8).find("strings"), std::string::npos);
  EXPECT_EQ(read(kString, 3, 8), "no error");
  EXPECT_NE(read(kString, 3, 8).find("the arrays up to 'k' have more than 16777216 strings"), std::string::npos);
  EXPECT_EQ(read(kString, 2, 8), "no error");
}

TEST(HostileGguf, Case15Bools) {
  expect_value_problem(kBool, "\2", "a bool of 'k' is 2, neither 0 nor 1");
  expect_value_problem(kBool, "\xFF", "is 255");
  expect_value_problem(kArray, gguf_array(kBool, 3, std::string_view("\0\1\3", 3)), "is 3, neither 0 nor 1");
}

TEST(HostileGguf, Case16Alignment) {
  for (const std::uint32_t alignment : {0u, 3u, 24u, 1u << 21, 1u << 31, ~0u}) {
    expect_pair_problem(gguf_pair("general.alignment", kU32, raw(alignment)), "must be a power of two");
  }
  expect_pair_problem(gguf_pair("general.alignment", kI32, raw(32)), "it must be a u32");
  expect_pair_problem(gguf_pair("general.alignment", 10, raw(std::uint64_t{32})), "is of type u64: it must be a u32");
  expect_pair_problem(gguf_pair("general.alignment", kString, gguf_string("32")), "it must be a u32");
}

TEST(HostileGguf, Case17Architecture) {
  const testing::TempDir folder;
  const auto problem = [&](std::vector<std::string> pairs) -> std::string {
    folder.write("a", GgufBytes{.pairs = std::move(pairs)}.bytes());
    try {
      GgufFile::open(folder.path() / "a").architecture();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(problem({}).find("no 'general.architecture'"), std::string::npos);
  EXPECT_NE(problem({gguf_pair("general.architecture", kString, gguf_string(""))}).find("is empty"), std::string::npos);
  EXPECT_NE(problem({gguf_pair("general.architecture", kU32, raw(1u))}).find("must be a string"), std::string::npos);
  EXPECT_EQ(problem({gguf_pair("general.architecture", kString, gguf_string("x"))}), "no error");
}

TEST(HostileGguf, Case18TensorNames) {
  expect_tensor_problem({.name = ""}, "the name of tensor 0 is empty");
  expect_tensor_problem({.name = std::string(64, 't')}, "has 64 bytes, and at most 63 are allowed");
  EXPECT_EQ(problem_of(GgufBytes{.tensors = {{.name = std::string(63, 't')}}}.bytes()), "no error");
  expect_tensor_problem({.name = std::string("t\0t", 3)}, "control character 0");
  expect_tensor_problem({.name = "t\x1B"}, "control character 27");
  expect_tensor_problem({.name = "\xF5"}, "is not UTF-8");
  expect_problem(
      GgufBytes{.tensors = {{.name = "a"}, {.name = "b", .offset = 32}, {.name = "a", .offset = 64}}, .data_bytes = 96},
      "two tensors are named 'a'");
}

TEST(HostileGguf, Case19Rank) {
  EXPECT_EQ(problem_of(GgufBytes{.tensors = {{.extents = {}}}}.bytes()), "no error");  // a scalar
  expect_tensor_problem({.extents = {1, 1, 1, 1, 1}}, "has 5 dimensions: at most 4 are allowed");
  expect_tensor_problem({.rank = ~0u}, "has 4294967295 dimensions");
  expect_tensor_problem({.extents = {}, .type = 2}, "rows of 1 elements are not whole blocks");
}

TEST(HostileGguf, Case20To22Extents) {
  for (const std::vector<std::uint64_t>& empty :
       std::vector<std::vector<std::uint64_t>>{{0}, {0, 0, 0, 0}, {k63 - 1, k63 - 1, 0}, {32, 0}}) {
    const std::string file = GgufBytes{.tensors = {{.extents = empty}}}.bytes();
    EXPECT_EQ(problem_of(file), "no error");
    EXPECT_EQ(parse_gguf(std::as_bytes(std::span(file)), "f").tensors[0].bytes.size(), 0u);
  }
  expect_tensor_problem({.extents = {k63}}, "dimension 0 of tensor 't' is 9223372036854775808");
  expect_tensor_problem({.extents = {4, kAll}}, "dimension 1 of tensor 't' is 18446744073709551615");
  const std::uint64_t k21 = 1 << 21, k32 = std::uint64_t{1} << 32;
  expect_tensor_problem({.extents = {k63 - 1, 2}}, "too large");
  expect_tensor_problem({.extents = {k32, k32}}, "too large");
  expect_tensor_problem({.extents = {k32, k32 / 2}}, "too large");  // 2^63 elements
  expect_tensor_problem({.extents = {k21, k21, k21, 2}}, "too large");
}

TEST(HostileGguf, Case23And30BytesThatWrap) {
  const std::uint64_t k62 = std::uint64_t{1} << 62;
  expect_tensor_problem({.extents = {k62}}, "too large");  // 2^64 bytes of F32
  // 292 bytes for 256 elements: below 2^64, above the file.
  expect_tensor_problem({.extents = {k63 - 256}, .type = 15}, "leaves the file");
  expect_tensor_problem({.extents = {k63 - 32}, .type = 8}, "leaves the file");  // below 2^64, above the file
  expect_tensor_problem({.extents = {k62 - 1}}, "leaves the file");              // 2^64 - 4 bytes: padding wraps
}

TEST(HostileGguf, Case24Types) {
  for (const std::uint32_t type : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    expect_tensor_problem({.type = type}, "which GGUF has given up");
  }
  for (const std::uint32_t type : {43u, 100u, 1u << 31, ~0u}) {
    expect_tensor_problem({.type = type}, "which is not known");
  }
}

TEST(HostileGguf, Case25RowsOfBlocks) {
  expect_tensor_problem({.extents = {33}, .type = 2}, "rows of 33 elements are not whole blocks: Q4_0 packs 32");
  expect_tensor_problem({.extents = {300}, .type = 12}, "rows of 300 elements are not whole blocks: Q4_K packs 256");
  expect_tensor_problem({.extents = {16, 2}, .type = 8}, "rows of 16 elements");  // a block must not span rows
}

TEST(HostileGguf, Case26To28Offsets) {
  for (const std::uint64_t offset : {1, 8, 31, 33}) expect_tensor_problem({.offset = offset}, "no multiple");
  const std::string aligned = gguf_pair("general.alignment", kU32, raw(64u));
  expect_problem(GgufBytes{.pairs = {aligned}, .tensors = {{.offset = 32}}, .data_bytes = 96, .alignment = 64},
                 "no multiple of the alignment 64");
  expect_problem(GgufBytes{.data_bytes = 15}, "tensor 't' of 16 bytes at offset 0 leaves the file, which has 15 bytes");
  expect_tensor_problem({.offset = 32}, "leaves the file");
  expect_tensor_problem({.offset = k63}, "leaves the file");
  expect_tensor_problem({.offset = kAll - 31}, "leaves the file");
  expect_tensor_problem({.extents = {k63 - 32}, .type = 24, .offset = k63}, "leaves the file");
}

TEST(HostileGguf, Case29OverlapsGapsAndTails) {
  const auto two = [](std::uint64_t first, std::uint64_t second, std::uint64_t extent, std::size_t data) {
    return GgufBytes{.tensors = {{.name = "a", .extents = {extent}, .offset = first},
                                 {.name = "b", .extents = {extent}, .offset = second}},
                     .data_bytes = data};
  };
  const auto notes = [](const GgufBytes& file) {
    const std::string bytes = file.bytes();
    return parse_gguf(std::as_bytes(std::span(bytes)), "f").notes;
  };
  using Notes = std::vector<std::string>;
  expect_problem(two(0, 0, 4, 64), "tensor 'b' overlaps another");
  expect_problem(two(32, 0, 12, 96), "tensor 'a' overlaps another");
  EXPECT_EQ(notes(two(32, 0, 4, 64)), Notes{}) << "any order will do";
  EXPECT_EQ(notes(two(0, 32, 4, 48)), Notes{}) << "the last need not be padded";
  EXPECT_EQ(notes(two(0, 96, 4, 128)), Notes{"64 bytes between the tensors belong to none"});
  EXPECT_EQ(notes(two(32, 64, 4, 96)), Notes{"32 bytes between the tensors belong to none"});
  EXPECT_EQ(notes(two(0, 32, 4, 67)), Notes{"3 bytes after the last tensor belong to no tensor"});
  EXPECT_EQ(notes(two(0, 0, 0, 0)), Notes{}) << "empty tensors overlap nothing";
  EXPECT_EQ(notes({.tensors = {}, .data_bytes = 5}), Notes{"5 bytes after the last tensor belong to no tensor"});
}

TEST(HostileGguf, Case31And32CutFiles) {
  const GgufBytes good{.pairs = {gguf_pair("k", kString, gguf_string("text")),
                                 gguf_pair("l", kArray, gguf_array(kString, 2, gguf_string("a") + gguf_string("")))},
                       .tensors = {{.name = "a"}, {.name = "b", .extents = {32, 2}, .type = 2, .offset = 32}},
                       .data_bytes = 32 + 36};
  const std::string bytes = good.bytes();
  ASSERT_EQ(problem_of(bytes), "no error");
  expect_problem(bytes.substr(0, bytes.size() - 1), "tensor 'b' of 36 bytes");
  expect_problem(bytes.substr(0, bytes.size() - 68), "leaves the file, which has 0 bytes of data");
  expect_problem(bytes.substr(0, bytes.size() - 69), "the file ends in front of the tensor data");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_NE(problem_of(bytes.substr(0, length)), "no error") << length;
  }
}

TEST(HostileGguf, Case34WhatIsNoFile) {
  const testing::TempDir folder;
  const std::string pipe = folder.path() / "pipe", loop = folder.path() / "loop";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(loop, loop);
  const std::pair<std::string, std::string> cases[] = {{pipe, "is a pipe, not a file"},
                                                       {folder.path().string(), "is a folder, not a file"},
                                                       {"/dev/zero", "is a device, not a file"},
                                                       {loop, "symbolic links"},
                                                       {pipe + "none", "No such file"}};
  for (const auto& [path, words] : cases) {
    try {
      GgufFile::open(path);
      ADD_FAILURE() << path;
    } catch (const IoError& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    }
  }
}

TEST(HostileGguf, FlippedBytesAndNoiseGiveErrorsOrFiles) {
  const std::string good =
      GgufBytes{.pairs = {gguf_pair("k", kString, gguf_string("text")), gguf_pair("general.alignment", kU32, raw(32u)),
                          gguf_pair("l", kArray, gguf_array(kString, 1, gguf_string("a")))},
                .tensors = {{.name = "a"}, {.name = "b", .extents = {32, 2}, .type = 2, .offset = 32}},
                .data_bytes = 96}
          .bytes();
  ASSERT_EQ(problem_of(good), "no error");
  std::mt19937 random(5);
  for (int i = 0; i < 10000; ++i) {
    std::string flipped = good;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 + random() % 255);
    problem_of(flipped);  // anything but a FormatError ends the test
  }
  std::string noise = "GGUF" + raw(3u) + raw(std::uint64_t{100}) + raw(std::uint64_t{100});
  for (int i = 0; i < 10'000'000; ++i) noise += static_cast<char>(random());
  EXPECT_NE(problem_of(noise), "no error");
}

}  // namespace
}  // namespace imago::files
