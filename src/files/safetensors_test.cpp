#include "files/safetensors.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "imago/error.h"
#include "testing/safetensors.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using testing::TempDir;

const std::string kTorch = std::string(IMAGO_TEST_DATA) + "/torch/float_types.safetensors";

template <class T>
std::vector<std::byte> bytes_of(std::initializer_list<T> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

TEST(Safetensors, ReadsWhatAnIndependentReaderReads) {
  const SafetensorsFile file = SafetensorsFile::open(kTorch);
  const testing::SafetensorsFile other("torch/float_types.safetensors");
  ASSERT_FALSE(file.tensors().empty());
  for (const SafetensorsTensor& tensor : file.tensors()) {
    const std::vector<std::size_t> shape = other.shape(tensor.name);
    EXPECT_EQ(tensor.shape, Shape(shape)) << tensor.name;
    const std::vector<std::byte> bytes = other.values<std::byte>(tensor.name);
    EXPECT_TRUE(std::ranges::equal(bytes, tensor.bytes)) << tensor.name;
    EXPECT_EQ(file.find(tensor.name), &tensor);
  }
  EXPECT_EQ(file.find("no such tensor"), nullptr);
  EXPECT_THROW(file.require("no such tensor"), FormatError);
}

TEST(Safetensors, EagerReadingGivesTheSame) {
  const SafetensorsFile mapped = SafetensorsFile::open(kTorch);
  const SafetensorsFile eager = SafetensorsFile::open(kTorch, true);
  ASSERT_EQ(mapped.tensors().size(), eager.tensors().size());
  for (std::size_t i = 0; i < mapped.tensors().size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(mapped.tensors()[i].bytes, eager.tensors()[i].bytes));
  }
}

struct Sample {
  SafetensorsType type;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

std::vector<Sample> samples() {
  using T = SafetensorsType;
  const auto raw = [](std::initializer_list<int> codes) {
    std::vector<std::byte> bytes;
    for (const int code : codes) bytes.push_back(static_cast<std::byte>(code));
    return bytes;
  };
  return {
      {T::f64, bytes_of<double>({1.5, -2}), {1.5f, -2}},
      {T::f32, bytes_of<float>({0.1f, -3}), {0.1f, -3}},
      {T::f16, bytes_of<std::uint16_t>({0x3C00, 0xC000}), {1, -2}},
      {T::bf16, bytes_of<std::uint16_t>({0x3F80, 0xC000}), {1, -2}},
      {T::i64, bytes_of<std::int64_t>({-5, 1ll << 40}), {-5, 0x1p40f}},
      {T::i32, bytes_of<std::int32_t>({-5, 7}), {-5, 7}},
      {T::i16, bytes_of<std::int16_t>({-5, 7}), {-5, 7}},
      {T::i8, bytes_of<std::int8_t>({-128, 127}), {-128, 127}},
      {T::u64, bytes_of<std::uint64_t>({5, ~0ull}), {5, 0x1p64f}},
      {T::u32, bytes_of<std::uint32_t>({5, ~0u}), {5, 0x1p32f}},
      {T::u16, bytes_of<std::uint16_t>({5, 65535}), {5, 65535}},
      {T::u8, bytes_of<std::uint8_t>({5, 255}), {5, 255}},
      {T::boolean, raw({0, 1}), {0, 1}},
      {T::f8_e4m3, raw({0x38, 0xC0}), {1, -2}},
      {T::f8_e5m2, raw({0x3C, 0xC0}), {1, -2}},
      {T::f8_e8m0, raw({127, 128, 0, 254}), {1, 2, 0x1p-127f, 0x1p127f}},
      {T::f4, raw({0x21, 0xF8}), {0.5f, 1, -0.0f, -6}},
  };
}

TEST(Safetensors, EveryTypeGoesThroughAFile) {
  const TempDir folder;
  const std::string path = folder.path() / "all.safetensors";
  std::vector<SafetensorsEntry> entries;
  for (const Sample& sample : samples()) {
    entries.push_back({std::string(name(sample.type)), sample.type, Shape{1, sample.values.size()}});
  }
  SafetensorsWriter writer(path, entries, {{"by", "test \"1\""}, {"a", "b"}});
  for (const SafetensorsEntry& entry : writer.entries()) {
    for (const Sample& sample : samples()) {
      if (sample.type != entry.type) continue;
      writer.write(entry.name, std::span(sample.bytes).first(1));
      writer.write(entry.name, std::span(sample.bytes).subspan(1));
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();

  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensors().size(), 17u);
  EXPECT_TRUE(std::ranges::is_sorted(file.tensors(), {}, &SafetensorsTensor::name));
  for (const Sample& sample : samples()) {
    const SafetensorsTensor& tensor = file.require(name(sample.type));
    EXPECT_EQ(tensor.type, sample.type);
    EXPECT_TRUE(std::ranges::equal(tensor.bytes, sample.bytes));
    const Tensor<float> values = file.read_float32(tensor.name);
    EXPECT_EQ(values.shape(), (Shape{1, sample.values.size()}));
    for (std::size_t i = 0; i < sample.values.size(); ++i) {
      EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(sample.values[i])) << tensor.name;
    }
  }
  ASSERT_EQ(file.metadata().size(), 2u);
  EXPECT_EQ(file.metadata()[1].second, "test \"1\"");
}

TEST(Safetensors, ScaleNaNOfE8M0) {
  const TempDir folder;
  const std::string path = folder.path() / "a";
  SafetensorsWriter writer(path, {{"s", SafetensorsType::f8_e8m0, Shape{1}}});
  writer.write("s", bytes_of<std::uint8_t>({255}));
  writer.commit();
  EXPECT_TRUE(std::isnan(SafetensorsFile::open(path).read_float32("s")[0]));
}

TEST(Safetensors, TheHeaderIsPaddedAndInNameOrder) {
  const TempDir folder;
  const std::string path = folder.path() / "a";
  const std::vector<std::pair<std::string, Tensor<float>>> tensors = {{"b", Tensor<float>(Shape{2}, {1, 2})},
                                                                      {"a", Tensor<float>(Shape{}, {3})}};
  save_safetensors(path, tensors);
  const MappedFile file = MappedFile::open(path);
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})";
  std::uint64_t length = 0;
  std::memcpy(&length, file.bytes().data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(file.text().substr(8, header.size()), header);
  EXPECT_EQ(file.text().substr(8 + header.size(), length - header.size()), std::string(length - header.size(), ' '));
  EXPECT_EQ(SafetensorsFile::open(path).read_float32("a")[0], 3);
  EXPECT_EQ(SafetensorsFile::open(path).read_float32("b")[1], 2);
}

TEST(Safetensors, EmptyFilesAndEmptyTensors) {
  const TempDir folder;
  const std::string path = folder.path() / "a";
  save_safetensors(path, {});
  EXPECT_TRUE(SafetensorsFile::open(path).tensors().empty());
  SafetensorsWriter writer(path, {{"e", SafetensorsType::f32, Shape{0, 3}}, {"f", SafetensorsType::f16, Shape{0}}});
  writer.commit();
  EXPECT_EQ(SafetensorsFile::open(path).read_float32("e").size(), 0u);
}

TEST(Safetensors, TheWriterHoldsItsCallerToTheList) {
  const TempDir folder;
  const std::string path = folder.path() / "a";
  folder.write("a", "old");
  const std::vector<float> two = {1, 2};
  {
    SafetensorsWriter writer(path, {{"b", SafetensorsType::f32, Shape{2}}, {"a", SafetensorsType::f32, Shape{2}}});
    EXPECT_THROW(writer.write("b", two), UsageError) << "a is due";
    EXPECT_THROW(writer.write("a", std::vector<float>(3)), UsageError);
    writer.write("a", two);
    EXPECT_THROW(writer.commit(), UsageError);
    writer.write("b", two);
    EXPECT_THROW(writer.write("b", two), UsageError);
  }
  EXPECT_EQ(MappedFile::open(path).text(), "old") << "it was never committed";
  const auto open = [&](std::vector<SafetensorsEntry> entries) { SafetensorsWriter writer(path, std::move(entries)); };
  EXPECT_THROW(open({{"a", SafetensorsType::f32, {}}, {"a", SafetensorsType::f32, {}}}), UsageError);
  EXPECT_THROW(open({{"", SafetensorsType::f32, {}}}), UsageError);
  EXPECT_THROW(open({{"__metadata__", SafetensorsType::f32, {}}}), UsageError);
  EXPECT_THROW(open({{"\xFF", SafetensorsType::f32, {}}}), UsageError);
  EXPECT_THROW(open({{"a", SafetensorsType::f4, Shape{3}}}), ShapeError);
}

}  // namespace
}  // namespace imago
