// Morphing with a calibration: bytes against encoders called by hand, and functions that stay the same.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "files/tensor_file.h"
#include "guided/calibration.h"
#include "guided/encode_matrix.h"
#include "guided/sketch.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/models.h"
#include "models/decoder_tensors.h"
#include "models/tensor_layout.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::convert {
namespace {

using files::TensorFile;
using guided::Calibration;
using guided::InputStatistics;

/// Statistics for every matrix of a decoder, drawn at random.
Calibration make_calibration(const std::string& model) {
  const TensorFile file = TensorFile::open(model);
  const models::Traits traits = models::read_traits(file);
  Calibration calibration;
  calibration.sketch = guided::sketch_model(file);
  calibration.windows = 1;
  calibration.context = 64;
  unsigned seed = 1;
  std::map<std::string, std::pair<models::NamedMatrices, std::size_t>> matrices;
  const auto note = [&](const models::LayoutTensor& tensor, std::size_t block) {
    const models::NamedMatrices named = models::matrices_of(traits, tensor, block);
    const std::size_t columns = models::extent_of(traits, tensor.roles.front(), block).cols;
    if (!named.name.empty()) matrices[tensor.name] = {named, columns};
  };
  models::for_each_tensor(traits, models::usual_naming(traits, true), note);
  for (const auto& [tensor, matrix] : matrices) {
    const auto& [named, columns] = matrix;
    for (std::size_t expert = 0; expert < named.experts; ++expert) {
      const auto statistics = std::make_shared<InputStatistics>();
      statistics->rows = 64;
      const std::vector<float> draws = testing::random_values(columns, seed++);
      for (const float draw : draws) statistics->second_moments.push_back(std::exp(3 * draw));
      statistics->products.resize(columns * columns);
      for (std::size_t i = 0; i < columns; ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
          const float both = std::sqrt(statistics->second_moments[i] * statistics->second_moments[j]);
          statistics->products[i * columns + j] = i == j ? both : 0.3f * both;
        }
      }
      calibration.matrices[{named.name, named.first_expert + expert}] = statistics;
    }
  }
  return calibration;
}

class GuidedConversion : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string model(const std::string& name) const {
    const auto found = testing::find_torch_model(name);
    if (!found) throw std::runtime_error(testing::missing_torch_model(name));
    return *found;
  }
  ConvertOptions options(const std::string& model, Format type, Rounding rounding) const {
    make_calibration(model).write(file("c.gguf"));
    ConvertOptions wanted;
    wanted.type = type;
    wanted.pure = true;
    wanted.calibration = file("c.gguf");
    wanted.rounding = rounding;
    return wanted;
  }
  testing::TempDir folder_;
};

TEST_F(GuidedConversion, TensorsAreWhatTheEncoderGives) {
  const std::string llama = model("llama_tied_f32");
  for (const Rounding rounding : {Rounding::nearest, Rounding::compensated}) {
    for (const char* target : {"out.gguf", "out.safetensors", "folder"}) {
      ConvertOptions wanted = options(llama, BlockFormat::q4_0, rounding);
      wanted.measure_error = true;
      const ConvertReport report = convert_model(llama, file(target), wanted);
      EXPECT_GT(report.relative_rmse.value_or(0), 0);
      const TensorFile source = TensorFile::open(llama), made = TensorFile::open(file(target));
      const Calibration calibration = Calibration::read(file("c.gguf"));
      const bool gguf = std::string(target) == "out.gguf";
      const files::StoredTensor& down = source.require("model.layers.1.mlp.down_proj.weight");
      std::vector<float> weights(down.shape.elements());
      files::decode_tensor(down, 0, weights);
      const guided::EncodedMatrix wanted_matrix = guided::encode_matrix(
          weights, down.rows(), down.cols(), BlockFormat::q4_0, rounding, calibration.find("blk.1.ffn_down.weight"));
      const files::StoredTensor& got = made.require(gguf ? "blk.1.ffn_down.weight" : std::string(down.name));
      ASSERT_EQ(got.bytes.size(), wanted_matrix.codes.size());
      EXPECT_TRUE(std::equal(got.bytes.begin(), got.bytes.end(), wanted_matrix.codes.begin())) << target;
    }
  }
}

TEST_F(GuidedConversion, TheCalibrationDecidesTheRoundingUnlessOneIsRequested) {
  const std::string llama = model("llama_tied_f32");
  const auto converted = [&](Format type, std::optional<Rounding> rounding) {
    ConvertOptions wanted = options(llama, type, Rounding::nearest);
    wanted.rounding = rounding;
    convert_model(llama, file("out.safetensors"), wanted);
    const TensorFile made = TensorFile::open(file("out.safetensors"));
    const auto bytes = made.require("model.layers.1.mlp.down_proj.weight").bytes;
    return std::vector<std::byte>(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(converted(BlockFormat::q4_0, std::nullopt), converted(BlockFormat::q4_0, Rounding::compensated));
  EXPECT_NE(converted(BlockFormat::q4_0, std::nullopt), converted(BlockFormat::q4_0, Rounding::nearest));
  EXPECT_EQ(converted(BlockFormat::tq1_0, std::nullopt), converted(BlockFormat::tq1_0, Rounding::nearest));
}

TEST_F(GuidedConversion, ExpertsHaveStatisticsOfTheirOwn) {
  const std::string mixtral = model("mixtral_moe_f32");
  ConvertOptions wanted = options(mixtral, DType::int4, Rounding::compensated);
  wanted.granularity = Granularity::group;
  convert_model(mixtral, file("out.safetensors"), wanted);
  const TensorFile source = TensorFile::open(mixtral), made = TensorFile::open(file("out.safetensors"));
  const Calibration calibration = Calibration::read(file("c.gguf"));
  const models::Traits traits = models::read_traits(source);
  const models::DecoderTensors tensors(source, traits);
  const models::WeightSlice slice = tensors.require(models::Role::down, 1, 2);
  std::vector<float> weights(slice.rows * slice.cols);
  models::decode_slice(slice, weights);
  Scheme scheme(DType::int4);
  scheme.granularity = Granularity::group;
  scheme.group = 32;
  const guided::EncodedMatrix expected =
      guided::encode_matrix(weights, slice.rows, slice.cols, scheme, Rounding::compensated,
                            calibration.find(models::matrix_name(traits, models::Role::down, 1), 2));
  const files::StoredTensor& got = made.require(slice.tensor->name);
  const std::size_t before = slice.first_row * slice.cols;
  ASSERT_GE(got.bytes.size(), before / 2 + expected.codes.size());
  EXPECT_TRUE(std::equal(expected.codes.begin(), expected.codes.end(),
                         got.bytes.begin() + static_cast<std::ptrdiff_t>(before / 2)));
  EXPECT_TRUE(std::equal(expected.scales.begin(), expected.scales.end(),
                         got.scale_values.begin() + static_cast<std::ptrdiff_t>(before / 32)));
}

TEST_F(GuidedConversion, ACalibrationOfAnotherModelIsRefused) {
  ConvertOptions wanted = options(model("llama_tied_f32"), BlockFormat::q4_0, Rounding::nearest);
  EXPECT_THROW(convert_model(model("qwen2_bias_f32"), file("out.gguf"), wanted), UsageError);
  EXPECT_FALSE(std::filesystem::exists(file("out.gguf")));
  // One of llama.cpp says nothing of weights: names and columns must do.
  Calibration nameless = Calibration::read(file("c.gguf"));
  nameless.sketch.clear();
  nameless.matrices.clear();
  nameless.matrices[{"other.weight", 0}] = std::make_shared<InputStatistics>(
      InputStatistics{.rows = 1, .second_moments = {1, 2}, .products = {}, .feedback = nullptr});
  nameless.write(file("c.gguf"));
  EXPECT_THROW(convert_model(model("llama_tied_f32"), file("out.gguf"), wanted), UsageError);
  nameless.matrices.begin()->second->rows = 1;
  nameless.matrices[{"blk.0.attn_q.weight", 0}] = nameless.matrices.begin()->second;
  nameless.write(file("c.gguf"));
  EXPECT_THROW(convert_model(model("llama_tied_f32"), file("out.gguf"), wanted), UsageError);
}

TEST_F(GuidedConversion, WhatTheCalibrationLacksIsRoundedPlainlyWithANote) {
  const std::string llama = model("llama_tied_f32");
  const ConvertOptions wanted = options(llama, BlockFormat::q4_0, Rounding::nearest);
  Calibration some = Calibration::read(file("c.gguf"));
  some.matrices.erase({"blk.0.ffn_down.weight", 0});
  some.write(file("c.gguf"));
  const ConvertReport report = convert_model(llama, file("out.gguf"), wanted);
  ASSERT_FALSE(report.notes.empty());
  EXPECT_NE(report.notes.back().find("blk.0.ffn_down.weight"), std::string::npos) << report.notes.back();
}

TEST_F(GuidedConversion, OptionsWithoutMeaningAreRefused) {
  ConvertOptions wanted;
  wanted.type = BlockFormat::q4_0;
  wanted.rounding = Rounding::compensated;
  EXPECT_THROW(convert_model(model("llama_tied_f32"), file("out.gguf"), wanted), UsageError);
  wanted = options(model("llama_tied_f32"), BlockFormat::tq1_0, Rounding::compensated);
  EXPECT_THROW(convert_model(model("llama_tied_f32"), file("out.gguf"), wanted), UnsupportedError);
}

// ---- scaled columns

/// Products of the matrices of a role with a random vector through what feeds them, before and after.
class ScaledModel {
 public:
  explicit ScaledModel(const std::string& path)
      : file_(TensorFile::open(path)), traits_(models::read_traits(file_)), tensors_(file_, traits_) {}

  std::vector<float> weights(models::Role role, std::size_t block) const {
    const auto slice = tensors_.find(role, block);
    if (!slice) return {};
    std::vector<float> values(slice->rows * slice->cols);
    models::decode_slice(*slice, values);
    return values;
  }
  const models::Traits& traits() const { return traits_; }

 private:
  TensorFile file_;
  models::Traits traits_;
  models::DecoderTensors tensors_;
};

/// norm · columns must be what it was, weight by weight, up to the rounding of a type of 8 bits.
void expect_same_products(const ScaledModel& before, const ScaledModel& after, models::Role producer,
                          models::Role consumer, std::size_t block, double& largest_change) {
  const std::vector<float> norm = before.weights(producer, block), new_norm = after.weights(producer, block);
  const std::vector<float> matrix = before.weights(consumer, block), new_matrix = after.weights(consumer, block);
  ASSERT_EQ(norm.size(), new_norm.size());
  ASSERT_EQ(matrix.size(), new_matrix.size());
  for (std::size_t i = 0; i < norm.size(); ++i) {
    largest_change =
        std::max(largest_change, std::fabs(std::log(static_cast<double>(norm[i]) / static_cast<double>(new_norm[i]))));
  }
  double noise = 0, signal = 0;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    const std::size_t column = i % norm.size();
    const double was = static_cast<double>(norm[column]) * static_cast<double>(matrix[i]);
    const double is = static_cast<double>(new_norm[column]) * static_cast<double>(new_matrix[i]);
    noise += (was - is) * (was - is);
    signal += was * was;
  }
  EXPECT_LT(std::sqrt(noise / signal), 0.05);
}

TEST_F(GuidedConversion, ScaledColumnsKeepTheFunction) {
  const std::string llama = model("llama_tied_f32");
  ConvertOptions wanted = options(llama, DType::int8, Rounding::scaled);
  wanted.granularity = Granularity::row;
  const ConvertReport report = convert_model(llama, file("folder"), wanted);
  EXPECT_NE(report.notes.back().find("groups of matrices"), std::string::npos);
  const ScaledModel before(llama), after(file("folder"));
  double largest_change = 0;
  for (std::size_t block = 0; block < before.traits().blocks; ++block) {
    using models::Role;
    for (const Role role : {Role::query, Role::key}) {
      expect_same_products(before, after, Role::attention_norm, role, block, largest_change);
    }
    expect_same_products(before, after, Role::feed_forward_norm, Role::gate, block, largest_change);
  }
  EXPECT_GT(largest_change, 0.1);  // something was scaled
}

// Latent attention, a gate beside the queries, a narrow layer beside attention: they read the norm as well. And norms
// that folders store minus one cannot be divided.
TEST_F(GuidedConversion, NormsThatOthersReadKeepTheirColumns) {
  using models::Role;
  for (const std::string name : {"deepseek_v2_lite_bf16", "qwen3_5_bf16", "gemma3n_bf16"}) {
    if (!testing::find_torch_model(name)) GTEST_SKIP() << testing::missing_torch_model(name);
    for (const bool gguf : {true, false}) {
      ConvertOptions wanted =
          options(model(name), gguf ? Format(BlockFormat::q8_0) : Format(DType::int8), Rounding::scaled);
      if (!gguf) wanted.granularity = Granularity::row;
      const std::string target = file(gguf ? "out.gguf" : "folder");
      convert_model(model(name), target, wanted);
      const ScaledModel before(model(name)), after(target);
      std::vector<Role> roles = {Role::attention_norm};
      if (!gguf && name == "qwen3_5_bf16") roles.push_back(Role::feed_forward_norm);
      for (std::size_t block = 0; block < before.traits().blocks; ++block) {
        for (const Role role : roles) {
          const std::vector<float> kept = before.weights(role, block);
          const float offset = before.traits().norm_offset - after.traits().norm_offset;
          const std::vector<float> norm = after.weights(role, block);
          ASSERT_EQ(norm.size(), kept.size());
          for (std::size_t i = 0; i < norm.size(); ++i) ASSERT_NEAR(norm[i], kept[i] + offset, 1e-6) << name << block;
        }
      }
    }
  }
}

TEST_F(GuidedConversion, ScaledColumnsKeepTheFunctionOfAScanBesideAttention) {
  const std::string falcon = model("falcon_h1_bf16");
  ConvertOptions wanted = options(falcon, DType::int8, Rounding::scaled);
  wanted.granularity = Granularity::row;
  Calibration calibration = make_calibration(falcon);
  for (const std::string block : {"blk.0.", "blk.1."}) {  // which all see the same
    for (const char* matrix : {"attn_k.weight", "attn_v.weight", "ssm_in.weight"}) {
      calibration.matrices.at({block + matrix, 0}) = calibration.matrices.at({block + "attn_q.weight", 0});
    }
  }
  calibration.write(wanted.calibration);
  convert_model(falcon, file("folder"), wanted);
  const ScaledModel before(falcon), after(file("folder"));
  double largest_change = 0;
  for (std::size_t block = 0; block < before.traits().blocks; ++block) {
    using models::Role;
    for (const Role role : {Role::query, Role::key, Role::output_gate, Role::channels, Role::step}) {
      expect_same_products(before, after, Role::attention_norm, role, block, largest_change);
    }
  }
  EXPECT_GT(largest_change, 0.1);
}

}  // namespace
}  // namespace imago::convert
