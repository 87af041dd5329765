// Models in several files.

#include <gtest/gtest.h>

#include "files/gguf.h"
#include "imago/error.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using testing::TempDir;

/// A part with the tensors named, each of one float: the number of the part.
struct PartSpec {
  std::vector<std::string> tensors;
  GgufValue no;
  GgufValue count;
  GgufValue total;
  std::string architecture = "test";
};

void write_part(const std::string& path, const PartSpec& part) {
  std::vector<GgufEntry> entries;
  for (const std::string& name : part.tensors) entries.push_back({name, gguf_tensor_type(DType::float32), Shape{1}});
  GgufWriter writer(path,
                    {{"general.architecture", part.architecture},
                     {"split.no", part.no},
                     {"split.count", part.count},
                     {"split.tensors.count", part.total}},
                    entries);
  const std::vector<float> value = {static_cast<float>(part.no.integer().value_or(0))};
  for (const std::string& name : part.tensors) writer.write(name, value);
  writer.commit();
}

std::uint16_t u16(int number) { return static_cast<std::uint16_t>(number); }

class GgufSplits : public ::testing::Test {
 protected:
  std::string path(std::size_t index, std::size_t count = 3) const {
    return gguf_part_path((folder_.path() / "m").string(), index, count);
  }

  /// Three parts with four tensors, each part changed by `change`.
  template <class F>
  void write_parts(F change) {
    const std::vector<std::string> names[3] = {{"a", "b"}, {"c"}, {"d"}};
    for (std::size_t i = 0; i < 3; ++i) {
      PartSpec part{names[i], u16(static_cast<int>(i)), u16(3), std::int32_t{4}};
      change(i, part);
      write_part(path(i), part);
    }
  }
  void write_parts() {
    write_parts([](std::size_t, PartSpec&) {});
  }

  std::string problem(const std::string& file) const {
    try {
      GgufFile::open(file);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }
  void expect_problem(std::string_view text) const {
    EXPECT_NE(problem(path(0)).find(text), std::string::npos) << problem(path(0));
  }

  TempDir folder_;
};

TEST_F(GgufSplits, AnyPartOpensTheWhole) {
  write_parts();
  for (std::size_t start = 0; start < 3; ++start) {
    const GgufFile file = GgufFile::open(path(start));
    EXPECT_EQ(file.path(), path(start));
    EXPECT_EQ(file.parts(), 3u);
    ASSERT_EQ(file.tensors().size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(file.tensors()[i].name, std::string(1, static_cast<char>('a' + i)));
    EXPECT_EQ(file.read_float32("b")[0], 0);
    EXPECT_EQ(file.read_float32("d")[0], 2);
    EXPECT_EQ(file.require("split.no").integer(), 0) << "the metadata are those of the first part";
  }
}

TEST_F(GgufSplits, NamesOfParts) {
  EXPECT_EQ(gguf_part_path("x/model", 0, 3), "x/model-00001-of-00003.gguf");
  EXPECT_EQ(gguf_part_path("m", 99, 12345), "m-00100-of-12345.gguf");
}

TEST_F(GgufSplits, AMergedFileIsWhole) {
  // llama.cpp sets the count of merged files to 0 and leaves the rest.
  for (const int count : {0, 1}) {
    const std::string merged = folder_.path() / "merged.gguf";
    write_part(merged, {{"a"}, u16(0), u16(count), std::int32_t{1}});
    EXPECT_EQ(GgufFile::open(merged).parts(), 1u);
  }
}

TEST_F(GgufSplits, AMissingPartIsNamed) {
  write_parts();
  std::filesystem::remove(path(1));
  expect_problem(path(1));
  expect_problem("part 2 of 3 is missing");
}

TEST_F(GgufSplits, ARenamedPartIsRefused) {
  write_parts();
  const std::string other = folder_.path() / "other.gguf";
  std::filesystem::rename(path(0), other);
  EXPECT_NE(problem(other).find("its name must end in '-00001-of-00003.gguf'"), std::string::npos) << problem(other);
}

TEST_F(GgufSplits, CountsAreChecked) {
  write_parts([](std::size_t i, PartSpec& part) { part.count = i == 1 ? u16(4) : u16(3); });
  expect_problem("split.count is 4, where other parts have 3");
  write_parts([](std::size_t, PartSpec& part) { part.count = std::uint32_t{65536}; });
  expect_problem("split.count must be an integer from 0 to 65535");
  write_parts([](std::size_t, PartSpec& part) { part.count = "3"; });
  expect_problem("split.count must be an integer");
  write_parts([](std::size_t, PartSpec& part) { part.no = std::int32_t{-1}; });
  expect_problem("split.no must be an integer from 0 to 2");
  write_parts([](std::size_t, PartSpec& part) { part.no = u16(3); });
  expect_problem("split.no must be an integer from 0 to 2");
  write_parts([](std::size_t i, PartSpec& part) { part.no = u16(i == 0 ? 0 : 1); });
  expect_problem("split.no is 1, where the name of the file says 2");
  write_parts([](std::size_t i, PartSpec& part) { part.no = u16(i == 0 ? 0 : 3 - static_cast<int>(i)); });
  expect_problem("split.no is 2, where the name of the file says 1");
  write_parts([](std::size_t, PartSpec& part) { part.total = std::int32_t{5}; });
  expect_problem("the 3 parts hold 4 tensors, but split.tensors.count is 5");
  write_parts([](std::size_t, PartSpec& part) { part.total = std::int64_t{1} << 40; });
  expect_problem("split.tensors.count must be an integer");
}

TEST_F(GgufSplits, PartsOfOtherModelsAreRefused) {
  write_parts([](std::size_t i, PartSpec& part) { part.total = std::int32_t{i == 2 ? 9 : 4}; });
  expect_problem("this part is of another model");
  write_parts([](std::size_t i, PartSpec& part) { part.architecture = i == 2 ? "other" : "test"; });
  expect_problem("its general.architecture is not that of the first");
  write_parts([](std::size_t i, PartSpec& part) {
    if (i == 2) part.tensors = {"b"};
  });
  expect_problem("two parts have a tensor 'b'");
}

TEST_F(GgufSplits, ASplitWithoutItsKeysIsRefused) {
  GgufWriter(path(0), {{"split.count", u16(3)}}, {}).commit();
  expect_problem("this is part of a split model, but has no split.no");
}

}  // namespace
}  // namespace imago
