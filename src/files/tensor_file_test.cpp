#include "files/tensor_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "files/hugging_face.h"
#include "files/packed_safetensors.h"
#include "files/safetensors.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "testing/blocks.h"
#include "testing/loom_files.h"
#include "testing/problems.h"
#include "testing/safetensors.h"
#include "testing/temp_dir.h"

namespace imago::files {
namespace {

using testing::expect_problem;
using testing::problem_of;
using testing::TempDir;

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

/// Tensors with their bytes, and what a file says of them.
struct Contents {
  std::vector<std::pair<SafetensorsEntry, std::vector<std::byte>>> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;

  void add(const std::string& name, SafetensorsType type, Shape shape, std::vector<std::byte> bytes) {
    tensors.emplace_back(SafetensorsEntry{name, type, std::move(shape)}, std::move(bytes));
  }
  void add_floats(const std::string& name, const std::vector<float>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    add(name, SafetensorsType::f32, Shape{values.size()}, {bytes.begin(), bytes.end()});
  }
  void write(const std::string& path) {
    std::ranges::sort(tensors, {}, [](const auto& tensor) { return tensor.first.name; });
    std::vector<SafetensorsEntry> entries;
    for (const auto& [entry, bytes] : tensors) entries.push_back(entry);
    SafetensorsWriter writer(path, entries, metadata);
    for (const auto& [entry, bytes] : tensors) writer.write(entry.name, bytes);
    writer.commit();
  }
};

std::vector<float> decode_range(const StoredTensor& tensor, std::size_t first, std::size_t count) {
  std::vector<float> values(count, -77.0f);
  decode_tensor(tensor, first, values);
  return values;
}
std::vector<float> decode_all(const StoredTensor& tensor) { return decode_range(tensor, 0, tensor.shape.elements()); }

// ---- listing and decoding

TEST(TensorFile, SafetensorsTypesComeOutAsTheirValues) {
  const TempDir folder;
  const std::string path = folder.path() / "t.safetensors";
  Contents contents;
  contents.add("a.f16", SafetensorsType::f16, {3}, bytes_of({0x00, 0x3C, 0x00, 0xC0, 0x00, 0x38}));
  contents.add("b.bf16", SafetensorsType::bf16, {2}, bytes_of({0x80, 0x3F, 0x00, 0xC0}));
  contents.add("c.i8", SafetensorsType::i8, {2, 2}, bytes_of({1, 0xFF, 0x80, 0x7F}));
  contents.add("d.bool", SafetensorsType::boolean, {3}, bytes_of({1, 0, 1}));
  contents.add("e.e8m0", SafetensorsType::f8_e8m0, {4}, bytes_of({127, 128, 126, 0}));
  contents.add("f.f4", SafetensorsType::f4, {6}, bytes_of({0x21, 0xF7, 0x98}));
  contents.add("g.e4m3", SafetensorsType::f8_e4m3, {2}, bytes_of({0x38, 0xB8}));
  contents.metadata = {{"who", "test"}};
  contents.write(path);

  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.form(), FileForm::safetensors);
  EXPECT_EQ(file.path(), path);
  EXPECT_EQ(file.gguf(), nullptr);
  EXPECT_EQ(file.folder(), nullptr);
  ASSERT_EQ(file.metadata().size(), 1u);
  EXPECT_EQ(file.metadata()[0].second, "test");
  ASSERT_EQ(file.tensors().size(), 7u);
  using Floats = std::vector<float>;
  EXPECT_EQ(decode_all(file.require("a.f16")), (Floats{1, -2, 0.5}));
  EXPECT_EQ(decode_all(file.require("b.bf16")), (Floats{1, -2}));
  EXPECT_EQ(decode_all(file.require("c.i8")), (Floats{1, -1, -128, 127}));
  EXPECT_EQ(decode_all(file.require("d.bool")), (Floats{1, 0, 1}));
  EXPECT_EQ(decode_all(file.require("e.e8m0")), (Floats{1, 2, 0.5, std::ldexp(1.0f, -127)}));
  EXPECT_EQ(decode_all(file.require("f.f4")), (Floats{0.5, 1, 6, -6, -0.0f, -0.5})) << "the low half comes first";
  EXPECT_EQ(decode_range(file.require("f.f4"), 1, 3), (Floats{1, 6, -6}));
  EXPECT_EQ(decode_range(file.require("e.e8m0"), 1, 2), (Floats{2, 0.5}));
  EXPECT_EQ(decode_range(file.require("c.i8"), 1, 2), (Floats{-1, -128}));
  EXPECT_EQ(decode_all(file.require("g.e4m3")), (Floats{1, -1}));

  const StoredTensor& i8 = file.require("c.i8");
  EXPECT_EQ(i8.type, "I8");
  EXPECT_EQ(i8.format, Format(DType::int8));
  EXPECT_EQ(i8.rows(), 2u);
  EXPECT_EQ(i8.cols(), 2u);
  EXPECT_EQ(i8.file, path);
  EXPECT_EQ(testing::read_text(path).substr(i8.offset, 4), std::string("\x01\xFF\x80\x7F"));
  EXPECT_EQ(file.require("a.f16").rows(), 1u);
  for (const char* name : {"d.bool", "e.e8m0", "f.f4"}) EXPECT_FALSE(file.require(name).format) << name;
  EXPECT_EQ(file.find("none"), nullptr);
  expect_problem([&] { file.require("none"); }, "there is no tensor 'none'");
  expect_problem([&] { decode_range(i8, 2, 3); }, "tensor 'c.i8' has 4 elements: 3 from 2 on leave it");
  expect_problem([&] { decode_range(i8, 5, 0); }, "0 from 5 on leave it");
  EXPECT_EQ(decode_range(i8, 4, 0), Floats{});
}

TEST(TensorFile, WrongBools) {
  const TempDir folder;
  Contents contents;
  contents.add("b", SafetensorsType::boolean, {4}, bytes_of({1, 0, 2, 3}));
  contents.write(folder.path() / "b.safetensors");
  const TensorFile bools = TensorFile::open(folder.path() / "b.safetensors");
  EXPECT_TRUE(is_decodable(bools.tensors()[0]));
  expect_problem([&] { decode_range(bools.tensors()[0], 1, 3); }, "tensor 'b' of BOOL holds 2 as element 2");
  EXPECT_EQ(decode_range(bools.tensors()[0], 0, 2), (std::vector<float>{1, 0}));
  expect_problem([&] { check_values(bools.tensors()[0]); },
                 "2 of its 4 weights are neither 0 nor 1, the first at index 2");
}

TEST(TensorFile, NetworksAreToldAsSuch) {
  const std::string path = testing::loom_folder() / "dense_int4.json";
  expect_problem([&] { TensorFile::open(path); }, "this is a network (checkpoint), not a file of tensors by name");
  EXPECT_THROW(TensorFile::open(path), UnsupportedError);
  EXPECT_THROW(TensorFile::open("/nowhere/at/all"), IoError);
}

/// ggml's own bytes and values, through both forms that hold blocks.
class Blocks : public ::testing::TestWithParam<BlockFormat> {
 protected:
  void SetUp() override {
    std::string key = name_;
    if (key.ends_with("_k")) key.back() = 'K';
    if (!reference_.has(key + ".bytes")) {  // quant/codebook_test.cpp compares those with ggml
      bytes_.resize(packed_bytes(GetParam(), 12 * 1024));
      values_.resize(12 * 1024);
      encode(GetParam(), testing::gaussian(values_.size(), 3), bytes_);
      return decode(GetParam(), bytes_, values_);
    }
    bytes_ = reference_.values<std::byte>(key + ".bytes");
    values_ = reference_.values<float>(key + ".dequantized");
  }

  void expect_values(const StoredTensor& tensor) const {
    EXPECT_EQ(tensor.format, Format(GetParam()));
    EXPECT_EQ(tensor.shape, (Shape{12, 1024}));
    EXPECT_TRUE(tensor.scale_values.empty());
    EXPECT_EQ(decode_all(tensor), values_);
    const auto block = static_cast<std::size_t>(info(GetParam()).values);
    const std::vector<float> range = decode_range(tensor, 3 * block, 2 * block);
    EXPECT_TRUE(std::ranges::equal(range, std::span(values_).subspan(3 * block, 2 * block)));
    expect_problem([&] { decode_range(tensor, 1, block); }, "are not whole blocks of");
    expect_problem([&] { decode_range(tensor, 0, block - 1); }, "are not whole blocks of");
    EXPECT_NO_THROW(check_values(tensor));
  }

  TempDir folder_;
  testing::SafetensorsFile reference_{"ggml/blocks.safetensors"};
  std::string name_{name(GetParam())};
  std::vector<std::byte> bytes_;
  std::vector<float> values_;
};

TEST_P(Blocks, ReadFromPackedSafetensors) {
  const std::string path = folder_.path() / "b.safetensors";
  Contents contents;
  contents.add("w", SafetensorsType::u8, {12, bytes_.size() / 12}, bytes_);
  contents.metadata = {{"imago.packed", packed_text(std::vector<PackedTensor>{{"w", GetParam(), {12, 1024}}})}};
  contents.write(path);
  const TensorFile file = TensorFile::open(path);
  EXPECT_TRUE(file.metadata().empty());
  ASSERT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].type, name_);
  EXPECT_EQ(file.tensors()[0].safetensors_type, SafetensorsType::u8);
  expect_values(file.tensors()[0]);
}

TEST_P(Blocks, ReadFromGguf) {
  const std::string path = folder_.path() / "b.gguf";
  GgufWriter writer(path, {{"general.architecture", "test"}}, {{"w", gguf_tensor_type(GetParam()), {12, 1024}}});
  writer.write("w", bytes_);
  writer.commit();
  const TensorFile file = TensorFile::open(path);
  EXPECT_EQ(file.form(), FileForm::gguf);
  ASSERT_NE(file.gguf(), nullptr);
  const StoredTensor& tensor = file.require("w");
  EXPECT_EQ(tensor.type, gguf_tensor_type(GetParam()).name);
  EXPECT_EQ(tensor.file, path);
  ASSERT_TRUE(tensor.gguf_type.has_value());
  EXPECT_EQ(tensor.gguf_type->id, gguf_tensor_type(GetParam()).id);
  EXPECT_EQ(testing::read_text(path).substr(tensor.offset, bytes_.size()),
            std::string(reinterpret_cast<const char*>(bytes_.data()), bytes_.size()));
  expect_values(tensor);
}

std::vector<BlockFormat> formats_of_ggml() {
  std::vector<BlockFormat> formats = testing::all_block_formats();
  std::erase(formats, BlockFormat::entity_q4_0);
  return formats;
}
INSTANTIATE_TEST_SUITE_P(All, Blocks, ::testing::ValuesIn(formats_of_ggml()), testing::block_format_name);

TEST(TensorFile, PartsOfASplitGgufAreNamed) {
  const TempDir folder;
  const std::string prefix = folder.path() / "m";
  for (int i = 0; i < 2; ++i) {
    const std::string name = i == 0 ? "a" : "b";
    GgufWriter writer(gguf_part_path(prefix, static_cast<std::size_t>(i), 2),
                      {{"split.no", static_cast<std::uint16_t>(i)},
                       {"split.count", std::uint16_t{2}},
                       {"split.tensors.count", std::int32_t{2}}},
                      {{name, gguf_tensor_type(DType::float32), {1}}});
    writer.write(name, std::vector<float>{static_cast<float>(i)});
    writer.commit();
  }
  const TensorFile file = TensorFile::open(gguf_part_path(prefix, 1, 2));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.require("a").file, gguf_part_path(prefix, 0, 2));
  EXPECT_EQ(file.require("b").file, gguf_part_path(prefix, 1, 2));
  EXPECT_EQ(decode_all(file.require("b")), std::vector<float>{1});
}

TEST(TensorFile, TypesThatAreOnlyNamed) {
  const TempDir folder;
  const std::string path = folder.path() / "i.gguf";
  const GgufTensorType* type = nullptr;
  for (const GgufTensorType& known : gguf_tensor_types()) {
    if (known.name == "Q8_K") type = &known;
  }
  ASSERT_NE(type, nullptr);
  GgufWriter writer(path, {}, {{"w", *type, {256}}});
  writer.write("w", std::vector<std::byte>(292));
  writer.commit();
  const TensorFile file = TensorFile::open(path);
  EXPECT_FALSE(is_decodable(file.require("w")));
  expect_problem([&] { decode_all(file.require("w")); }, "tensor 'w' is of type Q8_K, which imago does not compute");
  EXPECT_NO_THROW(check_values(file.require("w")));
}

// ---- packed dtypes

struct PackedCase {
  DType dtype;
  Granularity granularity;
  int group;
};

class PackedDTypes : public ::testing::TestWithParam<PackedCase> {};

TEST_P(PackedDTypes, AnyRangeDecodesToCodesTimesScales) {
  const auto [dtype, granularity, group] = GetParam();
  // Odd rows unless groups forbid it, so that rows begin amid a byte.
  const Shape shape = granularity == Granularity::group ? Shape{3, 128} : Shape{7, 13};
  PackedTensor packed{"w", dtype, shape, granularity, group};
  const std::size_t scale_count = packed_scale_count(packed);
  const std::size_t per_scale = shape.elements() / scale_count;
  std::vector<float> scales;
  for (std::size_t i = 0; i < scale_count; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
  std::vector<std::byte> codes(packed_bytes(dtype, shape.elements()));
  std::vector<float> zeros;
  packed.zero_points = info(dtype).kind == NumberKind::unsigned_integer;
  for (std::size_t i = 0; packed.zero_points && i < scale_count; ++i) zeros.push_back(static_cast<float>(i % 4));
  encode(dtype, testing::gaussian(shape.elements(), 3), {scales, per_scale, zeros}, codes);
  std::vector<float> wanted(shape.elements());
  decode(dtype, codes, {scales, per_scale, zeros}, wanted);

  const TempDir folder;
  const std::string path = folder.path() / "p.safetensors";
  Contents contents;
  contents.add("w", SafetensorsType::u8, {codes.size()}, codes);
  contents.add_floats("w.scales", scales);
  if (packed.zero_points) contents.add_floats("w.zeros", zeros);
  contents.add_floats("other", {1, 2});
  contents.metadata = {{"imago.packed", packed_text({&packed, 1})}, {"x", "y"}};
  contents.write(path);

  const TensorFile file = TensorFile::open(path);
  ASSERT_EQ(file.tensors().size(), 2u) << "scales are not listed as a tensor";
  EXPECT_EQ(file.find("w.scales"), nullptr);
  EXPECT_EQ(file.metadata().size(), 1u);
  const StoredTensor& tensor = file.require("w");
  EXPECT_EQ(tensor.type, name(dtype));
  EXPECT_EQ(tensor.shape, shape);
  EXPECT_EQ(tensor.scale_values, scales);
  EXPECT_EQ(tensor.zero_points, zeros);
  EXPECT_EQ(tensor.scale_group, per_scale);
  EXPECT_NO_THROW(check_values(tensor));
  for (std::size_t first = 0; first < shape.elements(); first += first < 20 ? 1 : 17) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{30}, shape.elements() - first}) {
      if (count > shape.elements() - first) continue;
      const auto range = decode_range(tensor, first, count);
      ASSERT_TRUE(std::ranges::equal(range, std::span(wanted).subspan(first, count))) << first << " + " << count;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PackedDTypes,
    ::testing::Values(PackedCase{DType::int4, Granularity::tensor, 0}, PackedCase{DType::int4, Granularity::row, 0},
                      PackedCase{DType::int4, Granularity::group, 32}, PackedCase{DType::uint2, Granularity::row, 0},
                      PackedCase{DType::uint8, Granularity::tensor, 0},
                      PackedCase{DType::uint4, Granularity::group, 32},
                      PackedCase{DType::ternary, Granularity::group, 64},
                      PackedCase{DType::binary, Granularity::row, 0}, PackedCase{DType::fp4, Granularity::group, 128},
                      PackedCase{DType::int8, Granularity::row, 0},
                      PackedCase{DType::fp8e4m3, Granularity::tensor, 0}));

TEST(PackedText, IsTheDocumentedForm) {
  const std::vector<PackedTensor> tensors = {{"a\"", DType::int4, {64, 128}, Granularity::group, 32},
                                             {"b", BlockFormat::q4_k, {256}},
                                             {"c", DType::ternary, {}, Granularity::tensor},
                                             {"d", DType::uint4, {2}, Granularity::tensor, 0, true}};
  const std::string text = packed_text(tensors);
  EXPECT_EQ(text, R"({"a\"":{"type":"int4","shape":[64,128],"granularity":"group","group":32},)"
                  R"("b":{"type":"q4_k","shape":[256]},"c":{"type":"ternary","shape":[],"granularity":"tensor"},)"
                  R"("d":{"type":"uint4","shape":[2],"granularity":"tensor","zero_points":true}})");
  EXPECT_EQ(parse_packed(text, "f"), tensors);
  EXPECT_EQ(packed_scale_count(tensors[0]), 256u);
  EXPECT_EQ(packed_scale_count(tensors[1]), 0u);
  const auto text_of = [](PackedTensor tensor) { packed_text({&tensor, 1}); };
  expect_problem([&] { text_of({"x", DType::float16, {4}}); }, "float16 is not a packed type: safetensors has a type");
  expect_problem([&] { text_of({"x", DType::int4, {4}, Granularity::group, 33}); }, "groups of 32, 64 or 128");
  expect_problem([&] { text_of({"x", DType::int4, {4}, Granularity::tensor, 0, true}); }, "int4 has no zero points");
  expect_problem([&] { text_of({"x", BlockFormat::q4_0, {32}, Granularity::row}); }, "its blocks carry their own");
}

/// What is wrong with a file whose U8 tensor "w" of `bytes` bytes has this entry.
std::string packed_problem(const std::string& entry, std::size_t bytes, std::vector<float> scales = {1},
                           std::vector<float> zeros = {}) {
  const std::vector<std::byte> codes(bytes);
  std::vector<SafetensorsTensor> tensors = {{"w", SafetensorsType::u8, {bytes}, codes}};
  if (!scales.empty()) {
    tensors.push_back({"w.scales", SafetensorsType::f32, {scales.size()}, std::as_bytes(std::span(scales))});
  }
  if (!zeros.empty()) {
    tensors.push_back({"w.zeros", SafetensorsType::f32, {zeros.size()}, std::as_bytes(std::span(zeros))});
  }
  const std::vector<std::pair<std::string, std::string>> metadata = {{"imago.packed", entry}};
  return problem_of([&] { list_safetensors(tensors, metadata, "f.safetensors"); });
}

TEST(HostilePacked, EveryRuleHasAnError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto expect = [](const std::string& problem, std::string_view text) {
    EXPECT_NE(problem.find(text), std::string::npos) << problem;
  };
  const std::string good = R"({"w":{"type":"int4","shape":[2,3],"granularity":"tensor"}})";
  expect(packed_problem(good, 3), "no error");
  expect(packed_problem("", 3), "f.safetensors, entry imago.packed: at byte 0");
  expect(packed_problem("[]", 3), "imago.packed");
  expect(packed_problem(R"({"w":1})", 3), "tensor 'w' must be an object");
  expect(packed_problem(R"({"w":{}})", 3), "tensor 'w' has no type");
  expect(packed_problem(R"({"w":{"type":"int5"}})", 3), "tensor 'w' is of type 'int5', which is not known");
  expect(packed_problem(R"({"w":{"type":"INT4"}})", 3), "is of type 'INT4', which is not known");
  expect(packed_problem(R"({"w":{"type":"entity_q4_0","shape":[32]}})", 20), "no error");
  expect(packed_problem(R"({"w":{"type":"float16","shape":[1]}})", 2), "float16 is not a packed type");
  expect(packed_problem(R"({"w":{"type":"int4"}})", 3), "tensor 'w' has no shape");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[-1]}})", 3), "an extent of the shape");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[9007199254740992,9007199254740992]}})", 3),
         "than a machine can");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6]}})", 3), "tensor 'w' of int4 has no granularity");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6],"granularity":"col"}})", 3),
         "it must be tensor, row or group");
  expect(packed_problem(R"({"w":{"type":"q4_0","shape":[32],"granularity":"row"}})", 18), "of q4_0 has no granularity");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6],"granularity":"row","group":32}})", 3), "has a group, but");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6],"granularity":"group"}})", 3), "groups of 32, 64 or 128");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[2,48],"granularity":"group","group":32}})", 48),
         "a row of 48 weights is not a multiple of the group of 32");
  expect(packed_problem(R"({"w":{"type":"q4_0","shape":[2,16]}})", 18),
         "a row of 16 weights is not a multiple of the block");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[2,4],"granularity":"tensor"}})", 3),
         "tensor 'w' of int4 [2, 4] takes 4 bytes, but has 3");
  expect(packed_problem(R"({"v":{"type":"q4_0","shape":[32]}})", 18), "names 'v', which is not a tensor of the file");
  expect(packed_problem(good.substr(0, good.size() - 1) + "," + good.substr(1), 3), "twice");
  expect(packed_problem(good, 3, {}), "tensor 'w.scales' is missing: 'w' of int4 needs its scales");
  expect(packed_problem(good, 3, {1, 2}), "tensor 'w.scales' has 2 scales, but int4 [2, 3] needs 1");
  expect(packed_problem(good, 3, {nan}), "tensor 'w.scales' holds nan as scale 0: scales are finite and not negative");
  expect(packed_problem(good, 3, {-1}), "holds -1 as scale 0");
  expect(packed_problem(good, 3, {0}), "no error");
  const std::string shifted = R"({"w":{"type":"uint4","shape":[2,3],"granularity":"tensor","zero_points":true}})";
  expect(packed_problem(shifted, 3, {1}, {15}), "no error");
  expect(packed_problem(shifted, 3), "tensor 'w.zeros' is missing: 'w' of uint4 needs its zero points");
  expect(packed_problem(shifted, 3, {1}, {1, 2}), "tensor 'w.zeros' has 2 zero points, but uint4 [2, 3] needs 1");
  expect(packed_problem(shifted, 3, {1}, {16}), "holds 16 as zero point 0: zero points are integers from 0 to");
  expect(packed_problem(shifted, 3, {1}, {nan}), "holds nan as zero point 0");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6],"granularity":"tensor","zero_points":true}})", 3),
         "int4 has no zero points");
  expect(packed_problem(R"({"w":{"type":"uint4","shape":[6],"granularity":"tensor","zero_points":1}})", 3),
         "zero_points");
  expect(packed_problem(R"({"w":{"type":"int4","shape":[6],"granularity":"tensor"},)"
                        R"("w.scales":{"type":"int4","shape":[8],"granularity":"tensor"}})",
                        3),
         "tensor 'w.scales' is packed int4, but holds the scales of another");

  const std::vector<std::byte> bytes(4);
  std::vector<SafetensorsTensor> tensors = {{"w", SafetensorsType::i8, {3}, std::span(bytes).first(3)},
                                            {"w.scales", SafetensorsType::f16, {1}, std::span(bytes).first(2)}};
  const std::vector<std::pair<std::string, std::string>> metadata = {{"imago.packed", good}};
  expect_problem([&] { list_safetensors(tensors, metadata, "f"); }, "so it must be U8, not I8");
  tensors[0].type = SafetensorsType::u8;
  expect_problem([&] { list_safetensors(tensors, metadata, "f"); }, "tensor 'w.scales' must be F32, not F16");
}

TEST(HostilePacked, FlippedBytesGiveErrorsOrTensorsThatCanBeRead) {
  const TempDir folder;
  const std::string path = folder.path() / "f.safetensors";
  const std::vector<PackedTensor> packed = {{"q", BlockFormat::q4_0, {2, 32}},
                                            {"w", DType::ternary, {2, 5}, Granularity::row}};
  Contents contents;
  contents.add("q", SafetensorsType::u8, {36}, std::vector<std::byte>(36));
  contents.add("w", SafetensorsType::u8, {3}, bytes_of({0x71, 0xC0, 0x10}));
  contents.add_floats("w.scales", {1, 2});
  contents.metadata = {{"imago.packed", packed_text(packed)}};
  contents.write(path);
  const std::string good = testing::read_text(path);
  std::mt19937 generator(1);
  std::size_t read = 0;
  for (int i = 0; i < 10'000; ++i) {
    std::string bad = good;
    bad[generator() % bad.size()] = static_cast<char>(generator() % 256);
    try {
      const SafetensorsHeader header = parse_safetensors(std::as_bytes(std::span(bad)), "f");
      for (const StoredTensor& tensor : list_safetensors(header.tensors, header.metadata, "f")) {
        ASSERT_LE(tensor.shape.elements(), 8 * tensor.bytes.size());
        if (is_decodable(tensor)) decode_all(tensor);
        check_values(tensor);
        ++read;
      }
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, 100u);
}

}  // namespace
}  // namespace imago::files
