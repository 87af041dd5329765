// Calibrations to files and back, and files that are none.

#include "guided/calibration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/models.h"
#include "testing/gguf_bytes.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::guided {
namespace {

std::shared_ptr<InputStatistics> statistics(std::size_t columns, bool products, std::uint64_t rows) {
  const auto made = std::make_shared<InputStatistics>();
  made->rows = rows;
  for (std::size_t i = 0; i < columns; ++i) made->second_moments.push_back(0.5f + static_cast<float>(i));
  for (std::size_t i = 0; products && i < columns * columns; ++i) made->products.push_back(static_cast<float>(i));
  return made;
}

Calibration some_calibration() {
  Calibration calibration;
  const auto shared = statistics(4, true, 1024);
  calibration.matrices[{"blk.0.attn_q.weight", 0}] = shared;
  calibration.matrices[{"blk.0.attn_k.weight", 0}] = shared;
  calibration.matrices[{"blk.0.ffn_down_exps.weight", 0}] = statistics(6, false, 16);
  calibration.matrices[{"blk.0.ffn_down_exps.weight", 2}] = statistics(6, false, 8);
  calibration.texts = {"a.txt", "b.txt"};
  calibration.text_hash = 0xfedcba9876543210;
  calibration.windows = 2;
  calibration.context = 512;
  calibration.sketch = {1, -2, 3};
  return calibration;
}

TEST(CalibrationFile, ComesBackAsItWas) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "c.gguf";
  some_calibration().write(path);
  const Calibration got = Calibration::read(path);
  EXPECT_EQ(got.path, path);
  EXPECT_EQ(got.texts, some_calibration().texts);
  EXPECT_EQ(got.text_hash, some_calibration().text_hash);
  EXPECT_EQ(got.windows, 2);
  EXPECT_EQ(got.context, 512);
  EXPECT_EQ(got.sketch, some_calibration().sketch);
  const InputStatistics& query = got.require("blk.0.attn_q.weight", 0, 4);
  EXPECT_EQ(query.rows, 1024);
  EXPECT_EQ(query.second_moments, (std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f}));
  EXPECT_EQ(query.products, some_calibration().find("blk.0.attn_q.weight")->products);
  EXPECT_EQ(got.find("blk.0.attn_k.weight"), &query);  // shared in memory too, and once in the file
  EXPECT_EQ(got.find("blk.0.ffn_down_exps.weight", 1), nullptr);
  EXPECT_EQ(got.require("blk.0.ffn_down_exps.weight", 2, 6).rows, 8);
  EXPECT_THROW(got.require("blk.0.attn_q.weight", 0, 5), UsageError);
  EXPECT_THROW(got.require("blk.9.attn_q.weight", 0, 4), UsageError);
}

// What llama.cpp looks for, by its own names.
TEST(CalibrationFile, IsAnImportanceMatrixOfLlamaCpp) {
  const testing::TempDir folder;
  const std::string path = folder.path() / "c.gguf";
  some_calibration().write(path);
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.require_string("general.type"), "imatrix");
  EXPECT_EQ(file.require_integer("imatrix.chunk_count", 0, 100), 2);
  EXPECT_EQ(file.require_integer("imatrix.chunk_size", 0, 1000), 512);
  EXPECT_EQ(file.require_array("imatrix.datasets", GgufType::string).size(), 2u);
  EXPECT_EQ(file.require_tensor("blk.0.attn_k.weight.in_sum2").shape, (Shape{1, 4}));
  EXPECT_EQ(file.require_tensor("blk.0.ffn_down_exps.weight.counts").shape, (Shape{3, 1}));
  const Tensor<float> counts = file.read_float32("blk.0.ffn_down_exps.weight.counts");
  EXPECT_EQ(std::vector<float>(counts.values().begin(), counts.values().end()), (std::vector<float>{16, 0, 8}));
  const Tensor<float> sums = file.read_float32("blk.0.ffn_down_exps.weight.in_sum2");
  EXPECT_EQ(sums.values()[1], 1.5f * 16);
  EXPECT_EQ(file.find_tensor("blk.0.attn_k.weight.products") != nullptr,
            file.find_tensor("blk.0.attn_q.weight.products") == nullptr);
}

// ---- what is wrong with a file

std::string floats(std::initializer_list<float> values) {
  std::string bytes;
  for (const float value : values) bytes += testing::raw(value);
  bytes.resize((bytes.size() + 31) / 32 * 32, '\0');
  return bytes;
}

/// One matrix of two columns; each part can be another.
struct FileParts {
  std::string type = "imatrix";
  std::vector<testing::GgufTensorBytes> tensors = {{.name = "m.in_sum2", .extents = {2, 1}},
                                                   {.name = "m.counts", .extents = {1, 1}, .offset = 32}};
  std::string data = floats({2, 8}) + floats({2});

  std::string bytes() const {
    testing::GgufBytes file;
    file.pairs = {testing::gguf_pair("general.type", 8, testing::gguf_string(type))};
    file.tensors = tensors;
    file.data_bytes = 0;
    return file.bytes() + data;
  }
  Calibration parse() const {
    const std::string file = bytes();
    return parse_calibration(std::as_bytes(std::span(file)), "hand-made");
  }
};

std::string problem_of(const FileParts& parts) {
  try {
    parts.parse();
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}

TEST(CalibrationFile, OfHandMadeBytes) {
  const Calibration got = FileParts().parse();
  EXPECT_EQ(got.require("m", 0, 2).second_moments, (std::vector<float>{1, 4}));
  EXPECT_TRUE(got.sketch.empty());
}

TEST(CalibrationFile, SaysWhatIsWrong) {
  FileParts parts;
  parts.type = "model";
  EXPECT_NE(problem_of(parts).find("not a calibration"), std::string::npos);
  parts = {};
  parts.tensors.pop_back();
  EXPECT_NE(problem_of(parts).find("no counts"), std::string::npos);
  parts = {};
  parts.tensors[1].extents = {3, 1};
  EXPECT_NE(problem_of(parts).find("2 sums and 3 counts"), std::string::npos);
  parts = {};
  parts.data = floats({2, std::nanf("")}) + floats({2});
  EXPECT_NE(problem_of(parts).find("column 1"), std::string::npos);
  for (const float count : {-1.0f, 0.5f, std::numeric_limits<float>::infinity()}) {
    parts.data = floats({2, 8}) + floats({count});
    EXPECT_NE(problem_of(parts).find("counts"), std::string::npos) << count;
  }
  parts = {};
  parts.tensors = {{.name = "m", .extents = {2}}};
  EXPECT_NE(problem_of(parts).find("without matrices"), std::string::npos);
}

TEST(CalibrationFile, OfTheOldFormGetsAHint) {
  const std::string old = testing::raw(std::int32_t{1}) + testing::raw(std::int32_t{1}) + "m";
  try {
    parse_calibration(std::as_bytes(std::span(old)), "old.dat");
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("llama-imatrix"), std::string::npos) << error.what();
  }
}

// ---- sketches

std::vector<float> sketch_file(const std::string& path) { return sketch_model(files::TensorFile::open(path)); }

TEST(Sketch, IsTheSameInAnyFormAndNearInAnyType) {
  const auto path = testing::find_torch_model("llama_tied_f32"),
             other = testing::find_torch_model("mistral_sliding_f32");
  if (!path || !other) GTEST_SKIP() << testing::missing_torch_model("llama_tied_f32");
  const testing::TempDir folder;
  Calibration calibration;
  calibration.sketch = sketch_file(*path);
  ASSERT_GT(calibration.sketch.size(), 100u);
  for (const char* type : {"float32", "q8_0", "q2_k", "tq2_0"}) {
    const std::string file = folder.path() / (std::string(type) + ".gguf");
    ConvertOptions options;
    options.type = parse_format(type);
    convert_model(*path, file, options);
    const std::vector<float> sketch = sketch_file(file);
    if (std::string(type) == "float32") {
      EXPECT_EQ(sketch, calibration.sketch);
    }
    EXPECT_NO_THROW(check_same_model(calibration, sketch, file)) << type;
  }
  EXPECT_THROW(check_same_model(calibration, sketch_file(*other), "other"), UsageError);
  EXPECT_NO_THROW(check_same_model({}, sketch_file(*other), "other"));  // nothing is known
}

}  // namespace
}  // namespace imago::guided
