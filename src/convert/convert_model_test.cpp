#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "convert/source.h"
#include "files/tensor_file.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "imago/models.h"
#include "imago/system.h"
#include "quant/scheme.h"
#include "testing/blocks.h"
#include "testing/safetensors.h"
#include "testing/temp_dir.h"

namespace imago::convert {
namespace {

using files::StoredTensor;
using files::TensorFile;
using testing::gaussian;
using testing::TempDir;

std::vector<std::byte> to_vector(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

std::vector<std::byte> packed(Format format, std::span<const float> weights) {
  std::vector<std::byte> bytes(packed_bytes(format, weights.size()));
  format.is_block() ? encode(format.block(), weights, bytes) : encode(format.dtype(), weights, {}, bytes);
  return bytes;
}

std::vector<float> decoded(const StoredTensor& tensor) {
  std::vector<float> values(tensor.shape.elements());
  files::decode_tensor(tensor, 0, values);
  return values;
}

ConvertOptions to(Format format) {
  ConvertOptions options;
  options.type = format;
  return options;
}

void convert_recipe(const models::ModelRecipe& recipe, const std::string& out, const ConvertOptions& options) {
  Source source;
  source.recipe = recipe;
  convert_source(source, out, options);
}

class Convert : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  /// A bag of one tensor `w`.
  void write_safetensors(const std::string& name, const Shape& shape, SafetensorsType type,
                         std::span<const std::byte> bytes) const {
    SafetensorsWriter writer(file(name), {{"w", type, shape}});
    writer.write("w", bytes);
    writer.commit();
  }
  TempDir folder_;
};

/// All formats of the reference data, by the names that GGUF gives them.
const std::vector<std::string> kReference = {"f16",    "bf16",   "q4_0",  "q4_1",  "q5_0", "q5_1",
                                             "q8_0",   "q2_K",   "q3_K",  "q4_K",  "q5_K", "q6_K",
                                             "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "mxfp4"};

TEST_F(Convert, PackedBytesSurviveTheWayToSafetensorsAndBack) {
  const testing::SafetensorsFile reference("ggml/blocks.safetensors");
  std::vector<GgufEntry> entries;
  for (const std::string& name : kReference)
    entries.push_back({name, gguf_tensor_type(parse_format(name)), {12, 1024}});
  GgufWriter writer(file("a.gguf"), {}, entries);
  for (const std::string& name : kReference) {
    const std::vector<std::uint8_t> bytes = reference.values<std::uint8_t>(name + ".bytes");
    writer.write(name, std::as_bytes(std::span(bytes)));
  }
  writer.commit();
  convert_model(file("a.gguf"), file("b.safetensors"));
  convert_model(file("b.safetensors"), file("c.gguf"));
  const TensorFile first = TensorFile::open(file("a.gguf")), middle = TensorFile::open(file("b.safetensors"));
  const TensorFile last = TensorFile::open(file("c.gguf"));
  for (const std::string& name : kReference) {
    EXPECT_EQ(middle.require(name).format, parse_format(name)) << name;
    EXPECT_EQ(middle.require(name).shape, (Shape{12, 1024})) << name;
    EXPECT_EQ(to_vector(last.require(name).bytes), to_vector(first.require(name).bytes)) << name;
    EXPECT_EQ(decoded(middle.require(name)), reference.values<float>(name + ".dequantized")) << name;
  }
}

TEST_F(Convert, BytesEqualThoseOfGgml) {
  const testing::SafetensorsFile reference("ggml/blocks.safetensors");
  const std::vector<float> input = reference.values<float>("input");
  write_safetensors("in.safetensors", {12, 1024}, SafetensorsType::f32, std::as_bytes(std::span(input)));
  for (const std::string name : {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "f16", "bf16"}) {
    convert_model(file("in.safetensors"), file("out.gguf"), to(parse_format(name)));
    const TensorFile made = TensorFile::open(file("out.gguf"));
    const std::vector<std::uint8_t> wanted = reference.values<std::uint8_t>(name + ".bytes");
    EXPECT_EQ(to_vector(made.require("w").bytes), to_vector(std::as_bytes(std::span(wanted)))) << name;
  }
}

/// Tensors of several pieces, whatever the threads, equal one call of the encoder.
TEST_F(Convert, PiecesEqualTheWhole) {
  const std::vector<float> weights = gaussian(400 * 768, 3);
  write_safetensors("in.safetensors", {400, 768}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  for (const int threads : {1, 3}) {
    set_thread_count(threads);
    for (const BlockFormat format : {BlockFormat::q4_k, BlockFormat::q8_0, BlockFormat::nvfp4}) {
      convert_model(file("in.safetensors"), file("out.safetensors"), to(format));
      const TensorFile made = TensorFile::open(file("out.safetensors"));
      EXPECT_EQ(to_vector(made.require("w").bytes), packed(format, weights)) << name(format);
    }
  }
  set_thread_count(0);
}

TEST_F(Convert, ScalesAreThoseOfAWholeTensor) {
  const std::vector<float> weights = gaussian(300 * 416, 4);
  write_safetensors("in.safetensors", {300, 416}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  for (const DTypeInfo& dtype : kDTypes) {
    if (!is_scaled(dtype.id)) continue;
    for (const Granularity granularity : {Granularity::tensor, Granularity::row, Granularity::group}) {
      for (const Calibrator calibrator : {Calibrator::absmax, Calibrator::percentile}) {
        if (calibrator == Calibrator::percentile && dtype.id != DType::int4) continue;
        ConvertOptions options = to(dtype.id);
        options.granularity = granularity;
        options.calibrator = calibrator;
        convert_model(file("in.safetensors"), file("out.safetensors"), options);
        WeightStore store(300, 416);
        store.set_master(weights);
        Scheme scheme(dtype.id);
        scheme.granularity = granularity;
        scheme.group = granularity == Granularity::group ? 32 : 0;
        scheme.calibrator = calibrator;
        const auto wanted = store.morph(scheme);
        const TensorFile made = TensorFile::open(file("out.safetensors"));
        const StoredTensor& got = made.require("w");
        EXPECT_EQ(got.format, Format(dtype.id));
        EXPECT_EQ(got.scale_values, std::vector<float>(wanted->scales().begin(), wanted->scales().end())) << dtype.name;
        EXPECT_EQ(to_vector(got.bytes), to_vector(wanted->codes())) << dtype.name;
        EXPECT_EQ(got.zero_points, std::vector<float>(wanted->zero_points().begin(), wanted->zero_points().end()))
            << dtype.name;
        EXPECT_EQ(got.zero_points.empty(), dtype.kind != NumberKind::unsigned_integer) << dtype.name;
      }
    }
  }
}

TEST_F(Convert, ZeroPointsAreKeptOrLeftOut) {
  const std::vector<float> weights = gaussian(24 * 96, 5);
  write_safetensors("in.safetensors", {24, 96}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  ConvertOptions options = to(DType::uint4);
  options.granularity = Granularity::row;
  options.measure_error = true;
  const ConvertReport with = convert_model(file("in.safetensors"), file("a.safetensors"), options);
  convert_model(file("a.safetensors"), file("b.safetensors"));
  const TensorFile a = TensorFile::open(file("a.safetensors")), b = TensorFile::open(file("b.safetensors"));
  EXPECT_EQ(a.require("w").zero_points.size(), 24u);
  EXPECT_EQ(a.require("w").zero_points, b.require("w").zero_points);
  EXPECT_EQ(to_vector(a.require("w").bytes), to_vector(b.require("w").bytes));
  EXPECT_EQ(with.tensors.at(0).to_bytes, 24u * 96 / 2 + 2 * 24 * 4);
  EXPECT_LT(*with.relative_rmse, 0.15);
  options.zero_points = false;
  const ConvertReport without = convert_model(file("in.safetensors"), file("c.safetensors"), options);
  EXPECT_TRUE(TensorFile::open(file("c.safetensors")).require("w").zero_points.empty());
  EXPECT_EQ(without.tensors.at(0).to_bytes, 24u * 96 / 2 + 24 * 4);
  EXPECT_GT(*without.relative_rmse, 0.7) << "what is negative is lost";
}

TEST_F(Convert, CodesAndScalesAreKept) {
  const std::vector<float> weights = gaussian(24 * 96, 5);
  write_safetensors("in.safetensors", {24, 96}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  ConvertOptions options = to(DType::int4);
  options.granularity = Granularity::group;
  convert_model(file("in.safetensors"), file("a.safetensors"), options);
  convert_model(file("a.safetensors"), file("b.safetensors"));
  const TensorFile a = TensorFile::open(file("a.safetensors")), b = TensorFile::open(file("b.safetensors"));
  EXPECT_EQ(to_vector(a.require("w").bytes), to_vector(b.require("w").bytes));
  EXPECT_EQ(a.require("w").scale_values, b.require("w").scale_values);
  EXPECT_EQ(b.require("w").scale_group, 32u);
  const ConvertReport report = convert_model(file("b.safetensors"), file("c.gguf"));
  EXPECT_EQ(report.tensors.at(0).to_type, "float16") << "GGUF has no int4 with scales";
  EXPECT_EQ(report.tensors.at(0).from_bytes, 24u * 96 / 2 + 24 * 3 * 4);
  const std::vector<float> there = decoded(TensorFile::open(file("c.gguf")).require("w"));
  const std::vector<float> here = decoded(b.require("w"));
  for (std::size_t i = 0; i < here.size(); ++i) ASSERT_NEAR(there[i], here[i], std::abs(here[i]) * 0x1p-11f);
}

/// Rows in another order, on packed bytes and on floats.
TEST_F(Convert, PermutedRowsAreTheSameInEveryType) {
  constexpr std::size_t kHeads = 3, kHeadRows = 32, kCols = 256, kRows = kHeads * kHeadRows;
  const std::vector<float> weights = gaussian(kRows * kCols, 6);
  const std::pair<models::RowTransform, models::RowTransform> both[] = {
      {models::RowTransform::to_adjacent, models::RowTransform::to_halves},
      {models::RowTransform::to_halves, models::RowTransform::to_adjacent}};
  for (const Format format : {Format(DType::float32), Format(DType::float16), Format(BlockFormat::q4_k)}) {
    const std::vector<std::byte> bytes = packed(format, weights);
    for (const auto& [there, back] : both) {
      StoredTensor source;
      source.name = "w";
      source.type = format.name();
      source.format = format;
      source.shape = {kRows, kCols};
      source.bytes = bytes;
      models::TensorRecipe recipe;
      recipe.name = "w";
      recipe.shape = source.shape;
      recipe.parts = {{&source, 0, kRows}};
      recipe.transform = there;
      recipe.heads = kHeads;
      models::ModelRecipe model;
      model.target = FileForm::gguf;
      model.tensors = {recipe};
      convert_recipe(model, file("kept.gguf"), {});
      convert_recipe(model, file("wide.gguf"), to(DType::float32));
      const TensorFile kept = TensorFile::open(file("kept.gguf")), wide = TensorFile::open(file("wide.gguf"));
      EXPECT_EQ(kept.require("w").format, format);
      const std::vector<float> values = decoded(kept.require("w")), before = decoded(source);
      EXPECT_EQ(values, decoded(wide.require("w")));
      for (std::size_t row = 0; row < kRows; ++row) {
        const std::size_t head = row / kHeadRows, j = row % kHeadRows;
        // Row j of the halves is row 2j or 2(j - half) + 1 of the neighbours.
        const std::size_t adjacent = j < kHeadRows / 2 ? 2 * j : 2 * (j - kHeadRows / 2) + 1;
        const std::size_t partner = head * kHeadRows + adjacent;
        const std::size_t from = there == models::RowTransform::to_adjacent ? row : partner;
        const std::size_t at = there == models::RowTransform::to_adjacent ? partner : row;
        ASSERT_TRUE(std::equal(before.begin() + static_cast<std::ptrdiff_t>(from * kCols),
                               before.begin() + static_cast<std::ptrdiff_t>((from + 1) * kCols),
                               values.begin() + static_cast<std::ptrdiff_t>(at * kCols)))
            << format.name() << ", row " << row;
      }
      model.tensors[0].transform = back;
      model.tensors[0].parts[0].tensor = &kept.require("w");
      convert_recipe(model, file("back.gguf"), {});
      EXPECT_EQ(to_vector(TensorFile::open(file("back.gguf")).require("w").bytes), bytes);
    }
  }
}

TEST_F(Convert, PartsAreJoinedTransposedAndMoved) {
  const std::vector<float> a = gaussian(40 * 64, 7), b = gaussian(24 * 64, 8);
  StoredTensor first, second;
  first.name = "a", second.name = "b";
  first.format = second.format = DType::float32;
  first.shape = {40, 64}, second.shape = {24, 64};
  first.bytes = std::as_bytes(std::span(a)), second.bytes = std::as_bytes(std::span(b));
  models::ModelRecipe model;
  model.target = FileForm::safetensors;
  model.tensors.resize(4);
  model.tensors[0].name = "joined";
  model.tensors[0].shape = {2, 16, 64};
  model.tensors[0].parts = {{&first, 3, 20}, {&second, 12, 12}};
  model.tensors[1].name = "transposed";
  model.tensors[1].shape = {64, 40};
  model.tensors[1].parts = {{&first, 0, 40}};
  model.tensors[1].transform = models::RowTransform::transpose;
  model.tensors[2].name = "plus";
  model.tensors[2].shape = {24, 64};
  model.tensors[2].parts = {{&second, 0, 24}};
  model.tensors[2].transform = models::RowTransform::add_one;
  model.tensors[3] = model.tensors[2];
  model.tensors[3].name = "minus";
  model.tensors[3].transform = models::RowTransform::subtract_one;
  convert_recipe(model, file("out.safetensors"), {});
  const TensorFile made = TensorFile::open(file("out.safetensors"));
  const std::vector<float> joined = decoded(made.require("joined")), transposed = decoded(made.require("transposed"));
  EXPECT_EQ(made.require("joined").shape, (Shape{2, 16, 64}));
  for (std::size_t i = 0; i < 20 * 64; ++i) ASSERT_EQ(joined[i], a[3 * 64 + i]);
  for (std::size_t i = 0; i < 12 * 64; ++i) ASSERT_EQ(joined[20 * 64 + i], b[12 * 64 + i]);
  for (std::size_t r = 0; r < 40; ++r) {
    for (std::size_t c = 0; c < 64; ++c) ASSERT_EQ(transposed[c * 40 + r], a[r * 64 + c]);
  }
  const std::vector<float> plus = decoded(made.require("plus")), minus = decoded(made.require("minus"));
  for (std::size_t i = 0; i < b.size(); ++i) {
    ASSERT_EQ(plus[i], b[i] + 1);
    ASSERT_EQ(minus[i], b[i] - 1);
  }
}

TEST_F(Convert, IntegersBecomeWiderOnesExactly) {
  const std::vector<std::uint32_t> numbers = {0, 1, 4294967295u, 16777217u};
  write_safetensors("in.safetensors", {2, 2}, SafetensorsType::u32, std::as_bytes(std::span(numbers)));
  convert_model(file("in.safetensors"), file("out.gguf"));
  const TensorFile made = TensorFile::open(file("out.gguf"));
  std::vector<std::int64_t> got(4);
  ASSERT_EQ(made.require("w").bytes.size(), 32u);
  std::memcpy(got.data(), made.require("w").bytes.data(), 32);
  EXPECT_EQ(got, (std::vector<std::int64_t>{0, 1, 4294967295, 16777217}));
  const std::vector<std::uint64_t> large = {1, std::uint64_t{1} << 63};
  write_safetensors("large.safetensors", {2}, SafetensorsType::u64, std::as_bytes(std::span(large)));
  EXPECT_THROW(convert_model(file("large.safetensors"), file("large.gguf")), FormatError);
  EXPECT_FALSE(std::filesystem::exists(file("large.gguf")));
}

TEST_F(Convert, ErrorsAreMeasured) {
  const std::vector<float> weights = gaussian(200 * 512, 9);
  write_safetensors("in.safetensors", {200, 512}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  ConvertOptions options = to(BlockFormat::q4_k);
  options.measure_error = true;
  const ConvertReport report = convert_model(file("in.safetensors"), file("out.gguf"), options);
  const Distortion wanted = measure_distortion(weights, decoded(TensorFile::open(file("out.gguf")).require("w")));
  ASSERT_TRUE(report.tensors.at(0).relative_rmse);
  EXPECT_NEAR(*report.tensors[0].relative_rmse, wanted.relative_rmse, 1e-9);
  EXPECT_NEAR(*report.relative_rmse, wanted.relative_rmse, 1e-9);
  EXPECT_EQ(report.parameters, 200u * 512);
  EXPECT_EQ(report.from_bytes, 200u * 512 * 4);
  EXPECT_EQ(report.to_bytes, packed_bytes(BlockFormat::q4_k, 200 * 512));
  EXPECT_FALSE(convert_model(file("out.gguf"), file("same.gguf"), options).tensors.at(0).relative_rmse)
      << "its type did not change";
}

TEST_F(Convert, WhatIsNotFiniteIsRefused) {
  std::vector<float> weights = gaussian(100 * 1024, 10);
  weights[90 * 1024 + 5] = std::numeric_limits<float>::infinity();
  write_safetensors("in.safetensors", {100, 1024}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  for (const ConvertOptions& options : {ConvertOptions{}, to(BlockFormat::q4_k), to(DType::int8), to(DType::float16)}) {
    EXPECT_THROW(convert_model(file("in.safetensors"), file("out.safetensors"), options), FormatError);
    EXPECT_FALSE(std::filesystem::exists(file("out.safetensors")));
    ConvertOptions allowed = options;
    allowed.allow_nonfinite = true;
    EXPECT_NO_THROW(convert_model(file("in.safetensors"), file("allowed.safetensors"), allowed));
  }
  weights[90 * 1024 + 5] = 70000;
  write_safetensors("wide.safetensors", {100, 1024}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  EXPECT_THROW(convert_model(file("wide.safetensors"), file("out.safetensors"), to(DType::float16)), UnsupportedError);
  EXPECT_NO_THROW(convert_model(file("wide.safetensors"), file("out.safetensors"), to(DType::bfloat16)));
}

TEST_F(Convert, TheOutputMayBeTheInput) {
  const std::vector<float> weights = gaussian(500 * 512, 11);
  for (const bool eager : {false, true}) {
    write_safetensors("m.safetensors", {500, 512}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
    ConvertOptions options = to(BlockFormat::q8_0);
    options.load.eager = eager;
    convert_model(file("m.safetensors"), file("m.safetensors"), options);
    EXPECT_EQ(to_vector(TensorFile::open(file("m.safetensors")).require("w").bytes),
              packed(BlockFormat::q8_0, weights));
  }
}

TEST_F(Convert, ProgressEndsWithAllBytes) {
  const std::vector<float> weights = gaussian(3000 * 512, 12);
  write_safetensors("in.safetensors", {3000, 512}, SafetensorsType::f32, std::as_bytes(std::span(weights)));
  ConvertOptions options = to(BlockFormat::q8_0);
  std::vector<std::uint64_t> seen;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, weights.size() * 4);
    seen.push_back(done);
  };
  convert_model(file("in.safetensors"), file("out.gguf"), options);
  EXPECT_TRUE(std::ranges::is_sorted(seen));
  ASSERT_FALSE(seen.empty());
  EXPECT_EQ(seen.back(), weights.size() * 4);
}

}  // namespace
}  // namespace imago::convert
