// Files of tensors against sums in double, and every architecture against itself in the other form.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "imago/error.h"
#include "imago/models.h"
#include "imago/precision.h"
#include "imago/system.h"
#include "precision/measures.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago {
namespace {

using NamedTensors = std::vector<std::pair<std::string, Tensor<float>>>;

class CompareModels : public ::testing::Test {
 protected:
  std::string file(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string save(const std::string& name, const NamedTensors& tensors) const {
    save_safetensors(file(name), tensors);
    return file(name);
  }
  testing::TempDir folder_;
};

Tensor<float> waves(const Shape& shape, double phase) {
  Tensor<float> tensor(shape);
  for (std::size_t i = 0; i < tensor.size(); ++i) {
    tensor[i] = static_cast<float>(std::sin(static_cast<double>(i) * 0.7 + phase) * (1 + static_cast<double>(i % 7)));
  }
  return tensor;
}

const ComparedTensor& row_of(const ModelComparison& comparison, const std::string& name) {
  for (const ComparedTensor& tensor : comparison.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no row " + name);
}

TEST_F(CompareModels, AgreesWithSumsInDouble) {
  // Large enough for several pieces and several sums in each.
  const Tensor<float> a = waves({1031, 2100}, 0), b = waves({1031, 2100}, 0.01);
  double dot = 0, aa = 0, bb = 0, dd = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i], y = b[i];
    dot += x * y;
    aa += x * x;
    bb += y * y;
    dd += (x - y) * (x - y);
  }
  const ModelComparison comparison =
      compare_models(save("a.safetensors", {{"w", a}}), save("b.safetensors", {{"w", b}}));
  const ComparedTensor& row = row_of(comparison, "w");
  EXPECT_NEAR(row.cosine.value(), dot / std::sqrt(aa * bb), 1e-12);
  EXPECT_NEAR(row.rmse.value(), std::sqrt(dd / static_cast<double>(a.size())), 1e-12);
  EXPECT_NEAR(row.relative_rmse.value(), std::sqrt(dd / aa), 1e-12);
  EXPECT_EQ(row.weights, a.size());
  EXPECT_EQ(row.bytes_a, 4 * a.size());
  EXPECT_DOUBLE_EQ(comparison.overall, row.cosine.value()) << "it is the only tensor";
  EXPECT_EQ(comparison.a.bits_per_weight(), 32);
}

TEST_F(CompareModels, OddTensorsHaveNoFiguresOrPlainOnes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor<float> zeros(Shape{2, 3}), ones({2, 3}, std::vector<float>(6, 1.0f)), flat(Shape{3, 2});
  Tensor<float> broken = ones;
  broken[4] = nan;
  const std::string a = save("a.safetensors", {{"constant", ones},
                                               {"empty", Tensor<float>(Shape{0, 3})},
                                               {"from_zero", zeros},
                                               {"nan", ones},
                                               {"only_here", ones},
                                               {"shape", ones},
                                               {"to_zero", ones},
                                               {"zero", zeros}});
  const std::string b = save("b.safetensors", {{"constant", ones},
                                               {"empty", Tensor<float>(Shape{0, 3})},
                                               {"from_zero", ones},
                                               {"nan", broken},
                                               {"only_there", ones},
                                               {"shape", flat},
                                               {"to_zero", zeros},
                                               {"zero", zeros}});
  const ModelComparison comparison = compare_models(a, b);
  EXPECT_EQ(row_of(comparison, "constant").cosine, 1.0);
  EXPECT_EQ(row_of(comparison, "constant").relative_rmse, 0.0);
  EXPECT_EQ(row_of(comparison, "zero").cosine, 1.0);
  EXPECT_EQ(row_of(comparison, "to_zero").cosine, 0.0);
  EXPECT_EQ(row_of(comparison, "to_zero").relative_rmse, 1.0);
  EXPECT_EQ(row_of(comparison, "from_zero").rmse, 1.0);
  EXPECT_EQ(row_of(comparison, "from_zero").relative_rmse, std::nullopt) << "nothing to be relative to";
  EXPECT_EQ(row_of(comparison, "shape").problem, "shapes [2, 3] and [3, 2]");
  EXPECT_EQ(row_of(comparison, "shape").cosine, std::nullopt);
  EXPECT_EQ(row_of(comparison, "empty").problem, "no elements");
  EXPECT_EQ(row_of(comparison, "nan").problem, "1 of 6 pairs of values are not finite");
  EXPECT_EQ(row_of(comparison, "nan").rmse, std::nullopt);
  EXPECT_EQ(comparison.a.only, std::vector<std::string>{"only_here"});
  EXPECT_EQ(comparison.b.only, std::vector<std::string>{"only_there"});
}

TEST_F(CompareModels, AFolderAndItsGgufAreTheSame) {
  for (const char* name : testing::kTorchModels) {
    const auto folder = testing::find_torch_model(name);
    if (!folder) GTEST_SKIP() << testing::missing_torch_model(name);
    SCOPED_TRACE(name);
    const std::string gguf = file(std::string(name) + ".gguf");
    convert_model(*folder, gguf);
    const ModelComparison comparison = compare_models(*folder, gguf);
    EXPECT_EQ(comparison.overall, 1);
    for (const ComparedTensor& tensor : comparison.tensors) {
      EXPECT_EQ(tensor.cosine, 1.0) << tensor.name << ": " << tensor.problem;
      // gemma's norms have 1 added on the way, which costs a bit of the last place.
      EXPECT_LT(tensor.relative_rmse.value(), 1e-6) << tensor.name;
    }
    EXPECT_EQ(comparison.a.only, std::vector<std::string>());
    const bool made = std::string(name) == "llama3_rope_scaling_f16";  // GGUF keeps the outcome of its settings
    EXPECT_EQ(comparison.b.only, made ? std::vector<std::string>{"rope_freqs.weight"} : std::vector<std::string>());
  }
}

TEST_F(CompareModels, FindsWhatMorphingReports) {
  const auto folder = testing::find_torch_model("llama_untied_bf16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("llama_untied_bf16");
  const ConvertReport report =
      convert_model(*folder, file("q.gguf"), {.type = BlockFormat::q4_0, .pure = true, .measure_error = true});
  const ModelComparison comparison = compare_models(*folder, file("q.gguf"));
  std::size_t compared = 0;
  for (const ConvertedTensor& tensor : report.tensors) {
    const ComparedTensor& row = row_of(comparison, tensor.name);
    EXPECT_EQ(row.type_b, tensor.to_type);
    EXPECT_EQ(row.bytes_b, tensor.to_bytes);
    if (!tensor.relative_rmse) continue;
    EXPECT_NEAR(row.relative_rmse.value(), *tensor.relative_rmse, 1e-9) << tensor.name;
    ++compared;
  }
  EXPECT_GT(compared, 5u);
  EXPECT_EQ(comparison.b.bytes, report.to_bytes);
  EXPECT_EQ(comparison.architecture, "llama");
}

TEST_F(CompareModels, WhatHasNothingInCommonIsRefused) {
  const std::string a = save("a.safetensors", {{"x", waves({2, 2}, 0)}});
  const std::string b = save("b.safetensors", {{"y", waves({2, 2}, 0)}});
  EXPECT_THROW(compare_models(a, b), UnsupportedError);
  const auto llama = testing::find_torch_model("llama_tied_f32"), gpt2 = testing::find_torch_model("gpt2_f32");
  if (!llama || !gpt2) GTEST_SKIP() << testing::missing_torch_model("gpt2_f32");
  try {
    compare_models(*llama, *gpt2);
    FAIL() << "no error";
  } catch (const UnsupportedError& error) {
    EXPECT_NE(std::string(error.what()).find("different architectures"), std::string::npos) << error.what();
  }
}

TEST(DistortionSums, DoNotDependOnThreads) {
  const Tensor<float> a = waves({300, 401}, 0), b = waves({300, 401}, 1);
  std::vector<double> found;
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    precision::DistortionSums sums;
    sums.add(a.values(), b.values());
    found.push_back(sums.cosine().value());
  }
  set_thread_count(0);
  EXPECT_EQ(found[0], found[1]);
}

}  // namespace
}  // namespace imago
