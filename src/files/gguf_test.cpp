#include "files/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "base/file.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "testing/blocks.h"
#include "testing/gguf_bytes.h"
#include "testing/reference.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using testing::gguf_array;
using testing::gguf_pair;
using testing::gguf_string;
using testing::raw;
using testing::TempDir;

template <class T>
GgufArray array_of(std::initializer_list<T> values) {
  return GgufArray::of<T>(std::span<const T>(values.begin(), values.size()));
}

std::vector<std::byte> to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A value and the bytes that the format prescribes for it.
struct Sample {
  GgufMetadata entry;
  std::string bytes;
};

std::vector<Sample> samples() {
  const std::vector<std::string> texts = {"a", "", std::string("\0\xFFz", 3)};
  const std::string text_bytes = gguf_string("a") + gguf_string("") + gguf_string(texts[2]);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  return {
      {{"u8", std::uint8_t{200}}, raw(std::uint32_t{0}) + raw(std::uint8_t{200})},
      {{"i8", std::int8_t{-100}}, raw(std::uint32_t{1}) + raw(std::int8_t{-100})},
      {{"u16", std::uint16_t{60000}}, raw(std::uint32_t{2}) + raw(std::uint16_t{60000})},
      {{"i16", std::int16_t{-30000}}, raw(std::uint32_t{3}) + raw(std::int16_t{-30000})},
      {{"u32", std::uint32_t{4'000'000'000}}, raw(std::uint32_t{4}) + raw(std::uint32_t{4'000'000'000})},
      {{"i32", std::int32_t{-7}}, raw(std::uint32_t{5}) + raw(std::int32_t{-7})},
      {{"f32", nan}, raw(std::uint32_t{6}) + raw(nan)},
      {{"bool", true}, raw(std::uint32_t{7}) + raw(std::uint8_t{1})},
      {{"string", "text"}, raw(std::uint32_t{8}) + gguf_string("text")},
      {{"u64", ~std::uint64_t{0}}, raw(std::uint32_t{10}) + raw(~std::uint64_t{0})},
      {{"i64", std::int64_t{-1}}, raw(std::uint32_t{11}) + raw(std::int64_t{-1})},
      {{"f64", 0.1}, raw(std::uint32_t{12}) + raw(0.1)},
      {{"a.u8", array_of<std::uint8_t>({1, 2, 3})}, raw(std::uint32_t{9}) + gguf_array(0, 3, "\1\2\3")},
      {{"a.i16", array_of<std::int16_t>({-2, 5})},
       raw(std::uint32_t{9}) + gguf_array(3, 2, raw(std::int16_t{-2}) + raw(std::int16_t{5}))},
      {{"a.i64", array_of<std::int64_t>({-2})}, raw(std::uint32_t{9}) + gguf_array(11, 1, raw(std::int64_t{-2}))},
      {{"a.f32", array_of<float>({1.5f, nan})}, raw(std::uint32_t{9}) + gguf_array(6, 2, raw(1.5f) + raw(nan))},
      {{"a.f64", array_of<double>({})}, raw(std::uint32_t{9}) + gguf_array(12, 0, "")},
      {{"a.bool", array_of<bool>({true, false})},
       raw(std::uint32_t{9}) + gguf_array(7, 2, std::string_view("\1\0", 2))},
      {{"a.string", GgufArray::of_strings(texts)}, raw(std::uint32_t{9}) + gguf_array(8, 3, text_bytes)},
  };
}

TEST(Gguf, MetadataOfEveryTypeIsWrittenAsTheFormatSaysAndReadBack) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  std::vector<GgufMetadata> metadata;
  testing::GgufBytes expected{.tensors = {}, .data_bytes = 0};
  for (const Sample& sample : samples()) {
    metadata.push_back(sample.entry);
    expected.pairs.push_back(gguf_string(sample.entry.key) + sample.bytes);
  }
  GgufWriter(path, metadata, {}).commit();
  EXPECT_EQ(MappedFile::open(path).text(), expected.bytes());

  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.version(), 3u);
  EXPECT_TRUE(file.notes().empty());
  ASSERT_EQ(file.metadata().size(), metadata.size());
  for (std::size_t i = 0; i < metadata.size(); ++i) {
    EXPECT_EQ(file.metadata()[i].key, metadata[i].key);
    EXPECT_TRUE(file.metadata()[i].value == metadata[i].value) << metadata[i].key;
    EXPECT_EQ(file.find(metadata[i].key), &file.metadata()[i].value);
  }
  EXPECT_EQ(file.find("none"), nullptr);

  // What was read can be written as it is.
  GgufWriter(folder.path() / "b.gguf", {file.metadata().begin(), file.metadata().end()}, {}).commit();
  EXPECT_EQ(MappedFile::open(folder.path() / "b.gguf").text(), expected.bytes());
}

TEST(Gguf, ValuesComeOutTyped) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  std::vector<GgufMetadata> metadata;
  for (const Sample& sample : samples()) metadata.push_back(sample.entry);
  GgufWriter(path, metadata, {}).commit();
  const GgufFile file = GgufFile::open(path);

  EXPECT_EQ(file.require("u32").integer(), 4'000'000'000);
  EXPECT_EQ(file.require("i8").number(), -100.0);
  EXPECT_EQ(file.require("u64").integer(), std::nullopt);
  EXPECT_EQ(file.require("f32").integer(), std::nullopt);
  EXPECT_EQ(file.require("bool").boolean(), true);
  EXPECT_EQ(file.require("bool").integer(), std::nullopt);
  EXPECT_EQ(file.require("u8").boolean(), std::nullopt);
  EXPECT_EQ(file.require("string").string(), "text");
  EXPECT_EQ(file.require("i32").string(), std::nullopt);
  EXPECT_EQ(file.require("a.i16").array()->integers(), (std::vector<std::int64_t>{-2, 5}));
  EXPECT_EQ(file.require("a.bool").array()->values<bool>(), (std::vector<bool>{true, false}));
  EXPECT_THROW(file.require("a.f32").array()->integers(), UsageError);
  EXPECT_THROW(file.require("a.f32").array()->values<double>(), UsageError);
  EXPECT_EQ(file.require("a.string").array()->strings()[2], std::string_view("\0\xFFz", 3));

  EXPECT_EQ(file.require_integer("i32", -7, 7), -7);
  EXPECT_EQ(file.require_number("f64"), 0.1);
  EXPECT_EQ(file.require_string("string"), "text");
  EXPECT_EQ(file.require_array("a.string", GgufType::string).size(), 3u);
  const auto problem = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "none";
  };
  const auto expect = [&](auto&& call, std::string_view text) {
    EXPECT_NE(problem(call).find(text), std::string::npos) << problem(call);
  };
  expect([&] { file.require("x"); }, "the metadata have no 'x'");
  expect([&] { file.require_integer("i32", 0, 7); }, "'i32' is -7: it must be from 0 to 7");
  expect([&] { file.require_integer("u64", 0, 7); }, "'u64' is beyond 2^63: it must be from 0 to 7");
  expect([&] { file.require_integer("f64", 0, 7); }, "'f64' is of type f64: it must be an integer");
  expect([&] { file.require_number("string"); }, "'string' is of type string: it must be a number");
  expect([&] { file.require_string("u8"); }, "'u8' is of type u8: it must be a string");
  expect([&] { file.require_array("a.f32", GgufType::i32); }, "'a.f32' must be an array of i32");
  expect([&] { file.require_array("u8", GgufType::u8); }, "'u8' must be an array of u8");
  expect([&] { file.require_tensor("t"); }, "no tensor 't'");
}

/// A tensor to write and its bytes.
struct Content {
  GgufEntry entry;
  std::vector<std::byte> bytes;
};

/// [2, 256] of `weights` in every type, and tensors of unusual shapes.
std::vector<Content> contents_of_every_type(std::span<const float> weights) {
  std::vector<Content> contents;
  for (const GgufTensorType& type : gguf_tensor_types()) {
    const std::size_t blocks = weights.size() / static_cast<std::size_t>(type.values);
    std::vector<std::byte> bytes(blocks * static_cast<std::size_t>(type.bytes), std::byte{0x5A});
    if (type.format && type.format->is_block()) {
      encode(type.format->block(), weights, bytes);
    } else if (type.format) {
      constexpr float kOne = 1;
      encode(type.format->dtype(), weights, {{&kOne, 1}, weights.size()}, bytes);
    }
    contents.push_back({{std::string(type.name), type, Shape{2, 256}}, bytes});
  }
  contents.push_back({{"odd", gguf_tensor_type(DType::int8), Shape{3}}, to_bytes("\1\2\xFD")});
  contents.push_back({{"scalar", gguf_tensor_type(DType::float32), Shape{}}, to_bytes(raw(2.5f))});
  contents.push_back({{"empty", gguf_tensor_type(DType::float32), Shape{4, 0}}, {}});
  contents.push_back({{"deep", gguf_tensor_type(DType::int16), Shape{1, 2, 3, 4}}, std::vector<std::byte>(48)});
  return contents;
}

void write_contents(const std::string& path, const std::vector<Content>& contents, std::uint32_t alignment) {
  std::vector<GgufEntry> entries;
  for (const Content& content : contents) entries.push_back(content.entry);
  GgufWriter writer(path, {{"general.architecture", "test"}}, entries, alignment);
  for (const Content& content : contents) {  // in two pieces
    const std::span<const std::byte> bytes = content.bytes;
    writer.write(content.entry.name, bytes.first(bytes.size() / 3));
    writer.write(content.entry.name, bytes.subspan(bytes.size() / 3));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();
}

TEST(Gguf, TensorsOfEveryTypeGoThroughAFile) {
  const TempDir folder;
  const std::vector<Content> contents = contents_of_every_type(testing::gaussian(2 * 256, 3));
  for (const std::uint32_t alignment : {8u, 32u, 64u}) {
    const std::string path = folder.path() / (std::to_string(alignment) + ".gguf");
    write_contents(path, contents, alignment);
    const GgufFile file = GgufFile::open(path);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.find("general.alignment") != nullptr, alignment != 32);
    EXPECT_EQ(file.architecture(), "test");
    EXPECT_TRUE(file.notes().empty());
    EXPECT_EQ(std::filesystem::file_size(path) % alignment, 0u);
    ASSERT_EQ(file.tensors().size(), contents.size());
    for (std::size_t i = 0; i < contents.size(); ++i) {
      const GgufTensor& tensor = file.tensors()[i];
      EXPECT_EQ(tensor.name, contents[i].entry.name);
      EXPECT_EQ(tensor.type.id, contents[i].entry.type.id);
      EXPECT_EQ(tensor.shape, contents[i].entry.shape);
      EXPECT_TRUE(std::ranges::equal(tensor.bytes, contents[i].bytes)) << tensor.name;
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.bytes.data()) % alignment, 0u) << tensor.name;
      EXPECT_EQ(file.find_tensor(tensor.name), &tensor);
    }
  }
}

TEST(Gguf, ReadsFloatsOutOfEveryTypeThatHasAFormat) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  const std::vector<float> weights = testing::gaussian(2 * 256, 3);
  write_contents(path, contents_of_every_type(weights), 32);
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.read_float32("odd")[2], -3);
  EXPECT_EQ(file.read_float32("scalar")[0], 2.5f);
  EXPECT_EQ(file.read_float32("empty").size(), 0u);
  for (const GgufTensorType& type : gguf_tensor_types()) {
    if (!type.format) {
      EXPECT_THROW(file.read_float32(type.name), UnsupportedError);
      continue;
    }
    const Tensor<float> values = file.read_float32(type.name);
    EXPECT_EQ(values.shape(), (Shape{2, 256}));
    if (type.format->is_block()) {
      std::vector<float> wanted(512);
      dequantize_row(type.format->block(), file.require_tensor(type.name).bytes, wanted);
      EXPECT_TRUE(std::ranges::equal(values.values(), wanted)) << type.name;
    } else {
      const bool integers = type.name.starts_with('I');  // with a scale of 1
      for (std::size_t i = 0; i < 512; ++i) {
        EXPECT_NEAR(values[i], weights[i], integers ? 0.5f : std::abs(weights[i]) / 128) << type.name;
      }
    }
  }
}

TEST(Gguf, TheTableOfTypesIsThatOfTheFormats) {
  std::set<std::uint32_t> ids;
  for (const GgufTensorType& type : gguf_tensor_types()) {
    EXPECT_TRUE(ids.insert(type.id).second) << type.name;
    EXPECT_EQ(files::find_gguf_tensor_type(type.id), &type);
    if (type.format) {
      EXPECT_EQ(packed_bytes(*type.format, static_cast<std::size_t>(type.values)),
                static_cast<std::size_t>(type.bytes));
    }
  }
  for (const BlockFormatInfo& block : kBlockFormats) {
    if (block.in_gguf()) {
      EXPECT_EQ(gguf_tensor_type(block.id).format, Format(block.id)) << block.name;
    } else {
      EXPECT_THROW(gguf_tensor_type(block.id), UnsupportedError);
    }
  }
  EXPECT_THROW(gguf_tensor_type(DType::int4), UnsupportedError);
  EXPECT_EQ(gguf_tensor_type(BlockFormat::q4_k).id, 12u);
  EXPECT_EQ(gguf_tensor_type(BlockFormat::nvfp4).id, 40u);
}

TEST(Gguf, TheLayoutIsThatOfTheFormat) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  GgufWriter writer(
      path, {{"k", std::uint32_t{7}}},
      {{"b", gguf_tensor_type(DType::float32), Shape{2, 3}}, {"a", gguf_tensor_type(DType::int8), Shape{5}}}, 64);
  writer.write("b", std::vector<float>(6));
  writer.write("a", to_bytes(std::string(5, '\0')));
  writer.commit();
  // The innermost extent stands first, order is that of the caller, both tensors are padded.
  const testing::GgufBytes expected{
      .pairs = {gguf_pair("k", 4, raw(std::uint32_t{7})), gguf_pair("general.alignment", 4, raw(std::uint32_t{64}))},
      .tensors = {{.name = "b", .extents = {3, 2}}, {.name = "a", .extents = {5}, .type = 24, .offset = 64}},
      .data_bytes = 128,
      .alignment = 64};
  EXPECT_EQ(MappedFile::open(path).text(), expected.bytes());
}

TEST(Gguf, Version2IsReadTheSame) {
  const std::string bytes = testing::GgufBytes{.version = 2}.bytes();
  const files::GgufHeader header = files::parse_gguf(std::as_bytes(std::span(bytes)), "f");
  EXPECT_EQ(header.version, 2u);
  EXPECT_EQ(header.tensors.at(0).shape, (Shape{4}));
}

TEST(Gguf, AlignmentIsTheWritersToState) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  GgufWriter(path, {{"general.alignment", std::uint32_t{64}}, {"z", true}}, {}).commit();
  EXPECT_EQ(GgufFile::open(path).alignment(), 32u);
  EXPECT_EQ(GgufFile::open(path).metadata()[0].value.integer(), 32);
}

TEST(Gguf, EagerReadingGivesTheSame) {
  const TempDir folder;
  const std::string path = folder.path() / "a.gguf";
  GgufWriter writer(path, {}, {{"a", gguf_tensor_type(DType::float32), Shape{2}}});
  writer.write("a", std::vector<float>{1, 2});
  writer.commit();
  EXPECT_EQ(GgufFile::open(path, true).read_float32("a")[1], 2);
  EXPECT_EQ(GgufFile::open(path, false).read_float32("a")[1], 2);
}

TEST(Gguf, TheWriterHoldsItsCallerToTheRules) {
  const TempDir folder;
  const std::string path = folder.path() / "a";
  folder.write("a", "old");
  const GgufTensorType f32 = gguf_tensor_type(DType::float32);
  {
    GgufWriter writer(path, {}, {{"b", f32, Shape{2}}, {"a", f32, Shape{2}}});
    const std::vector<float> two = {1, 2};
    EXPECT_THROW(writer.write("a", two), UsageError) << "b is due";
    EXPECT_THROW(writer.write("b", std::vector<float>(3)), UsageError);
    writer.write("b", two);
    EXPECT_THROW(writer.commit(), UsageError);
    writer.write("a", two);
    EXPECT_THROW(writer.write("a", two), UsageError);
  }
  EXPECT_EQ(MappedFile::open(path).text(), "old") << "it was never committed";
  const auto metadata = [&](std::vector<GgufMetadata> entries) { GgufWriter writer(path, std::move(entries), {}); };
  EXPECT_THROW(metadata({{"a", true}, {"a", false}}), UsageError);
  EXPECT_THROW(metadata({{"", true}}), UsageError);
  EXPECT_THROW(metadata({{"\xFF", true}}), UsageError);
  EXPECT_THROW(metadata({{std::string(65536, 'a'), true}}), UsageError);
  const auto tensors = [&](std::vector<GgufEntry> entries, std::uint32_t alignment = 32) {
    GgufWriter writer(path, {}, std::move(entries), alignment);
  };
  EXPECT_THROW(tensors({{"a", f32, {}}, {"a", f32, {}}}), UsageError);
  EXPECT_THROW(tensors({{"", f32, {}}}), UsageError);
  EXPECT_THROW(tensors({{"a\n", f32, {}}}), UsageError);
  EXPECT_NO_THROW(tensors({{std::string(63, 'a'), f32, {}}}));
  EXPECT_THROW(tensors({{std::string(64, 'a'), f32, {}}}), UsageError);
  EXPECT_THROW(tensors({{"a", {.id = 4, .name = "", .format = {}}, {}}}), UsageError);
  EXPECT_THROW(tensors({{"a", f32, Shape{1, 1, 1, 1, 1}}}), ShapeError);
  EXPECT_THROW(tensors({{"a", gguf_tensor_type(BlockFormat::q4_0), Shape{32, 33}}}), ShapeError);
  for (const std::uint32_t alignment : {0u, 4u, 24u, 1u << 31}) EXPECT_THROW(tensors({}, alignment), UsageError);
}

TEST(Gguf, VocabulariesOfRealModels) {
  const std::string folder = (testing::reference_folder() / "vocab/").string();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << testing::missing_reference("vocab");
  const auto expect = [&](const std::string& name, std::string_view architecture, std::size_t tokens) {
    const GgufFile file = GgufFile::open(folder + "ggml-vocab-" + name + ".gguf");
    EXPECT_EQ(file.architecture(), architecture);
    const GgufArray& texts = file.require_array("tokenizer.ggml.tokens", GgufType::string);
    EXPECT_EQ(texts.size(), tokens) << name;
    EXPECT_EQ(file.require_array("tokenizer.ggml.token_type", GgufType::i32).size(), tokens);
    EXPECT_TRUE(std::ranges::find(texts.strings(), "the") != texts.strings().end());
    EXPECT_TRUE(file.tensors().empty());
  };
  expect("gpt-2", "gpt2", 50257);
  expect("llama-spm", "llama", 32000);
  expect("falcon", "falcon", 65024);
  expect("deepseek-llm", "llama", 102400);
}

}  // namespace
}  // namespace imago
