// Plans of small models and networks: within the budget, better than one type, and clear about what cannot be.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "testing/byte_model.h"
#include "testing/dense_stack.h"
#include "testing/one_thread.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

const testing::OneThread one_thread;  // the models are small
constexpr std::size_t kContext = 32;

PlanOptions small_options(double bits) {
  PlanOptions options;
  options.bits = bits;
  options.types = {BlockFormat::q4_0, BlockFormat::q5_0, BlockFormat::q8_0, DType::float16};
  options.context = kContext;
  options.windows = 2;
  return options;
}

class PlanModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = testing::ByteModel::missing()) GTEST_SKIP() << *missing;
    files_.emplace();
    text_ = testing::ByteModel::text(8 * kContext);
  }
  PlanReport plan(const PlanOptions& options) const { return plan_model(files_->path(), text_, "ships", options); }
  std::string refused(const PlanOptions& options) const {
    try {
      plan(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "no UsageError";
  }
  std::optional<testing::ByteModel> files_;
  std::string text_;
};

TEST_F(PlanModel, MeetsTheBudgetAndSaysWhatItMeasured) {
  PlanEstimate estimate;
  PlanOptions options = small_options(5.2);
  options.on_estimate = [&](const PlanEstimate& seen) { estimate = seen; };
  const PlanReport report = plan(options);
  EXPECT_LE(report.bits_per_weight(), 5.2);
  EXPECT_GT(report.bits_per_weight(), 4.5);
  EXPECT_GT(estimate.measurements, 0u);
  EXPECT_EQ(estimate.memory_bytes, report.memory_bytes);
  std::uint64_t bytes = 0;
  double predicted = 0;
  for (const TensorChoice& tensor : report.tensors) {
    bytes += tensor.bytes;
    predicted += tensor.added;
  }
  EXPECT_EQ(bytes, report.bytes);
  EXPECT_NEAR(predicted, report.predicted, 1e-12);
  ASSERT_TRUE(report.uniform_type);
  EXPECT_LE(report.measured.added, report.uniform.added);
  EXPECT_GT(report.original.level, 1);
  EXPECT_EQ(report.plan.tensors.size(), report.tensors.size());
  EXPECT_NE(report.plan.facts.find("ships"), std::string::npos);

  // What morph makes of it has exactly these types.
  const std::string path = files_->file("plan.json"), out = files_->file("out.gguf");
  write_plan(report.plan, path);
  EXPECT_EQ(report.plan.rounding, Rounding::compensated);
  ConvertOptions morph;
  morph.plan = path;
  EXPECT_THROW(convert_model(files_->path(), out, morph), UsageError) << "this rounding needs a calibration";
  morph.calibration = files_->file("calibration.gguf");
  calibrate_model(files_->path(), text_, "ships", morph.calibration, {.context = kContext, .products = true});
  convert_model(files_->path(), out, morph);
  std::map<std::string, std::string> types;
  for (const TensorSummary& tensor : inspect_model(out).tensors) types[tensor.name] = tensor.type;
  for (const TensorChoice& tensor : report.tensors) {
    EXPECT_EQ(parse_format(types.at(tensor.name)), tensor.type) << tensor.name;
  }
}

TEST_F(PlanModel, RefusesWhatCannotBe) {
  EXPECT_NE(refused(small_options(4)).find("the smallest possible is 4.5 bits per weight"), std::string::npos)
      << refused(small_options(4));
  PlanOptions options = small_options(5);
  options.size = 1000;
  EXPECT_NE(refused(options).find("either bits per weight or bytes"), std::string::npos);
  options = small_options(5);
  options.context = 10 * kContext;
  EXPECT_NE(refused(options).find("fewer than one window"), std::string::npos);
  options.context = 6 * kContext;
  EXPECT_NE(refused(options).find("a plan needs at least two windows"), std::string::npos);
  options = small_options(5);
  options.types = {DType::int8};
  EXPECT_NE(refused(options).find("int8 cannot be planned for a language model"), std::string::npos);
  options.types = {BlockFormat::q4_k};
  EXPECT_NE(refused(options).find("none of these types fits"), std::string::npos);
}

TEST_F(PlanModel, OneTypeIsKeptWhereNoMixtureIsBetter) {
  PlanOptions options = small_options(8.5);
  options.types = {BlockFormat::q8_0};
  const PlanReport report = plan(options);
  EXPECT_TRUE(report.kept_uniform);
  EXPECT_EQ(report.uniform_type, Format(BlockFormat::q8_0));
  EXPECT_EQ(report.bytes, report.uniform_bytes);
}

std::string write_network(const testing::TempDir& folder) {
  constexpr int kWidths[] = {8, 32, 2};
  const Network network = testing::dense_stack(kWidths, Activation::tanh, 7);
  const std::string path = folder.path() / "net.json";
  save_network(network, path);
  return path;
}

Dataset data_of(const std::string& path, std::size_t examples) {
  Network network = load_network(path);
  Dataset data{Tensor<float>(Shape{examples, 8}), {}};
  for (std::size_t i = 0; i < data.x.size(); ++i) {
    data.x.values()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
  }
  data.y = network.forward(data.x);
  return data;
}

TEST(PlanNetwork, MeetsTheBudgetAndMorphFollows) {
  const testing::TempDir folder;
  const std::string path = write_network(folder);
  const Dataset data = data_of(path, 40);
  PlanOptions options;
  options.bits = 7;
  const PlanReport report = plan_network(path, data, "waves", options);
  EXPECT_LE(report.bits_per_weight(), 7);
  EXPECT_NEAR(report.original.level, 0, 1e-9) << "the targets are its own answers";
  EXPECT_LE(report.measured.level, report.uniform.level);
  EXPECT_FALSE(report.measured.accuracy.has_value());
  ASSERT_EQ(report.tensors.size(), 2u);
  write_plan(report.plan, folder.path() / "plan.json");
  ConvertOptions morph;
  morph.plan = folder.path() / "plan.json";
  const std::string out = folder.path() / "out.json";
  convert_model(path, out, morph);
  const Network morphed = load_network(out);
  for (const NamedLayer& named : named_layers(morphed)) {
    const auto found = std::find_if(report.tensors.begin(), report.tensors.end(),
                                    [&](const TensorChoice& tensor) { return tensor.name == named.path; });
    ASSERT_NE(found, report.tensors.end()) << named.path;
    EXPECT_EQ(Format(named.layer->config.dtype), found->type);
  }
}

TEST(PlanNetwork, RefusesWhatCannotBe) {
  const testing::TempDir folder;
  const std::string path = write_network(folder);
  PlanOptions options;
  options.bits = 0.5;
  const auto refused = [&](const Dataset& data) -> std::string {
    try {
      plan_network(path, data, "waves", options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(refused(data_of(path, 4)).find("the smallest possible is"), std::string::npos);
  EXPECT_NE(refused(data_of(path, 1)).find("needs two at least"), std::string::npos);
}

TEST(PlanNetwork, ChoosesAmongBlocksWhereTheyFit) {
  const testing::TempDir folder;
  const std::string path = write_network(folder);
  const Dataset data = data_of(path, 40);
  PlanOptions options;
  options.bits = 40;
  options.types = {BlockFormat::q8_0, BlockFormat::q4_k};
  const PlanReport report = plan_network(path, data, "waves", options);
  EXPECT_EQ(report.tensors.at(0).type, DType::float32) << "rows of 8 fit neither and stay what they are";
  EXPECT_EQ(report.tensors.at(1).type, BlockFormat::q8_0);
  write_plan(report.plan, folder.path() / "plan.json");
  ConvertOptions morph;
  morph.plan = folder.path() / "plan.json";
  const std::string out = folder.path() / "out.json";
  convert_model(path, out, morph);
  const Network planned = load_network(out);
  EXPECT_EQ(planned.layers()[1].config.dtype, BlockFormat::q8_0);
}

}  // namespace
}  // namespace imago
