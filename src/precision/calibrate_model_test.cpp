// Calibrating from files to a file, stopped and gone on.

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <optional>
#include <string>

#include "guided/calibration.h"
#include "imago/error.h"
#include "imago/files.h"
#include "imago/precision.h"
#include "testing/byte_model.h"

namespace imago {
namespace {

class CalibrateModel : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto missing = testing::ByteModel::missing()) GTEST_SKIP() << *missing;
    model_.emplace();
    for (int i = 0; i < 12 * 16; ++i) text_ += static_cast<char>('a' + i * i % 23);
  }
  std::string path(const char* name) const { return model_->file(name); }
  CalibrateReport calibrate(const char* out, const CalibrateOptions& options) {
    return calibrate_model(model_->path(), text_, "letters", path(out), options);
  }

  std::optional<testing::ByteModel> model_;
  std::string text_;
};

TEST_F(CalibrateModel, WritesWhatTheTextDid) {
  const CalibrateReport report = calibrate("c.gguf", {.context = 16});
  EXPECT_EQ(report.windows, 12u);
  EXPECT_EQ(report.rows, 12u * 16);
  EXPECT_EQ(report.resumed, 0u);
  const guided::Calibration got = guided::Calibration::read(path("c.gguf"));
  EXPECT_EQ(got.matrices.size(), report.matrices);
  EXPECT_EQ(got.texts, std::vector<std::string>{"letters"});
  EXPECT_EQ(got.find("blk.0.attn_q.weight")->rows, 12u * 16);
  EXPECT_FALSE(got.sketch.empty());
}

struct Stopped {};

TEST_F(CalibrateModel, GoesOnWhereItWasStopped) {
  CalibrateOptions options{.context = 16, .products = true};
  calibrate("whole.gguf", options);
  options.progress = [](std::size_t done, std::size_t) {
    if (done == 10) throw Stopped{};
  };
  EXPECT_THROW(calibrate("parts.gguf", options), Stopped);
  EXPECT_FALSE(std::filesystem::exists(path("parts.gguf")));
  EXPECT_TRUE(std::filesystem::exists(path("parts.gguf.partial")));
  std::size_t first = 0;
  options.progress = [&](std::size_t done, std::size_t) { first = first == 0 ? done : first; };
  EXPECT_EQ(calibrate("parts.gguf", options).resumed, 8u);
  EXPECT_EQ(first, 9u);
  EXPECT_FALSE(std::filesystem::exists(path("parts.gguf.partial")));
  const guided::Calibration parts = guided::Calibration::read(path("parts.gguf"));
  const guided::Calibration whole = guided::Calibration::read(path("whole.gguf"));
  for (const auto& [key, statistics] : whole.matrices) {
    const guided::InputStatistics& got = parts.require(key.first, key.second, statistics->second_moments.size());
    EXPECT_EQ(got.products, statistics->products);
    for (std::size_t i = 0; i < got.second_moments.size(); ++i) {
      EXPECT_FLOAT_EQ(got.second_moments[i], statistics->second_moments[i]);
    }
  }
}

TEST_F(CalibrateModel, AnotherTextStartsAnew) {
  CalibrateOptions options{.context = 16};
  options.progress = [](std::size_t done, std::size_t) {
    if (done == 10) throw Stopped{};
  };
  EXPECT_THROW(calibrate("c.gguf", options), Stopped);
  options.progress = {};
  text_[0] = 'z';
  EXPECT_EQ(calibrate("c.gguf", options).resumed, 0u);
}

TEST_F(CalibrateModel, RefusesAShortText) {
  text_.resize(15);
  EXPECT_THROW(calibrate("c.gguf", {.context = 16}), UsageError);
  EXPECT_FALSE(std::filesystem::exists(path("c.gguf")));
}

TEST_F(CalibrateModel, NamesTheMatrixWhoseInputsAreNotFinite) {
  // Weights of a norm so large that what it gives overflows.
  const SafetensorsFile file = SafetensorsFile::open(path("model.safetensors"));
  std::vector<std::pair<std::string, Tensor<float>>> tensors;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    tensors.emplace_back(tensor.name, file.read_float32(tensor.name));
    if (tensor.name == "model.layers.1.post_attention_layernorm.weight") {
      for (float& value : tensors.back().second.values()) value = 1e30f;
    }
  }
  save_safetensors(path("model.safetensors"), tensors);
  try {
    calibrate("c.gguf", {.context = 16});
    FAIL();
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("blk.1.ffn_gate.weight"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace imago
