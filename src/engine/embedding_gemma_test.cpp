// gemma 3 as an encoder, with dense layers after pooling as sentence-transformers has them: a model that this test
// makes up, against plain loops over doubles.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <numbers>
#include <utility>

#include "imago/data.h"
#include "imago/engine.h"
#include "imago/error.h"
#include "testing/random_values.h"
#include "testing/temp_dir.h"

namespace imago {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

constexpr std::size_t kWidth = 16, kHeads = 2, kHeadValues = 8, kFeedForward = 24, kVocabulary = 20, kBlocks = 3;
constexpr std::size_t kHidden = 24, kResults = 10;
constexpr std::size_t kReach = 2;  // half of the window
constexpr double kEps = 1e-6, kScalar = 10, kBase = 1e4, kWindowBase = 100;

constexpr const char* kConfig = R"({"architectures": ["Gemma3TextModel"], "model_type": "gemma3_text",
  "use_bidirectional_attention": true, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1,
  "head_dim": 8, "intermediate_size": 24, "num_hidden_layers": 3, "vocab_size": 20, "max_position_embeddings": 64,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 4,
  "query_pre_attn_scalar": 10, "rope_theta": 10000, "rope_local_base_freq": 100, "rms_norm_eps": 1e-6,
  "hidden_activation": "gelu_pytorch_tanh"})";

class EmbeddingGemma : public ::testing::Test {
 protected:
  EmbeddingGemma() {
    add("embed_tokens.weight", {kVocabulary, kWidth}, 1);
    add("norm.weight", {kWidth}, 0.3F);
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const std::string in = "layers." + std::to_string(block) + ".";
      for (const char* norm :
           {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}) {
        add(in + norm + ".weight", {kWidth}, 0.3F);
      }
      add(in + "self_attn.q_norm.weight", {kHeadValues}, 0.3F);
      add(in + "self_attn.k_norm.weight", {kHeadValues}, 0.3F);
      add(in + "self_attn.q_proj.weight", {kHeads * kHeadValues, kWidth}, 0.4F);
      add(in + "self_attn.k_proj.weight", {kHeadValues, kWidth}, 0.4F);
      add(in + "self_attn.v_proj.weight", {kHeadValues, kWidth}, 0.4F);
      add(in + "self_attn.o_proj.weight", {kWidth, kHeads * kHeadValues}, 0.4F);
      add(in + "mlp.gate_proj.weight", {kFeedForward, kWidth}, 0.4F);
      add(in + "mlp.up_proj.weight", {kFeedForward, kWidth}, 0.4F);
      add(in + "mlp.down_proj.weight", {kWidth, kFeedForward}, 0.4F);
    }
    folder_.write("config.json", kConfig);
    std::vector<std::pair<std::string, Tensor<float>>> tensors(weights_.begin(), weights_.end());
    save_safetensors((folder_.path() / "model.safetensors").string(), tensors);
    folder_.write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
    write_dense("2_Dense", kWidth, kHidden, "torch.nn.modules.activation.Tanh", true);
    write_dense("3_Dense", kHidden, kResults, "torch.nn.modules.linear.Identity", false);
    write_modules({"1_Pooling.Pooling", "2_Dense.Dense", "3_Dense.Dense", "4_Normalize.Normalize"});
  }

  void add(const std::string& name, Shape shape, float scale) { weights_.emplace(name, made(std::move(shape), scale)); }

  Tensor<float> made(Shape shape, float scale) {
    Tensor<float> tensor(std::move(shape));
    const std::vector<float> values = testing::random_values(tensor.values().size(), ++seed_);
    for (std::size_t i = 0; i < values.size(); ++i) tensor.values()[i] = scale * values[i];
    return tensor;
  }

  void write_dense(const std::string& path, std::size_t in, std::size_t out, const std::string& activation, bool bias) {
    folder_.write(path + "/config.json", R"({"in_features": )" + std::to_string(in) + R"(, "out_features": )" +
                                             std::to_string(out) + R"(, "bias": )" + (bias ? "true" : "false") +
                                             R"(, "activation_function": ")" + activation + "\"}");
    std::vector<std::pair<std::string, Tensor<float>>> tensors = {{"linear.weight", made({out, in}, 0.4F)}};
    if (bias) tensors.emplace_back("linear.bias", made({out}, 0.4F));
    save_safetensors((folder_.path() / path / "model.safetensors").string(), tensors);
    for (auto& [name, tensor] : tensors) weights_.insert_or_assign(path + "." + name, tensor);
  }

  void write_modules(const std::vector<std::string>& modules) {
    std::string text = R"([{"path": "", "type": "sentence_transformers.models.Transformer"})";
    for (const std::string& module : modules) {
      const std::size_t dot = module.find('.');
      text += R"(, {"path": ")" + module.substr(0, dot) + R"(", "type": "sentence_transformers.models.)" +
              module.substr(dot + 1) + "\"}";
    }
    folder_.write("modules.json", text + "]");
  }

  std::vector<float> embed(const std::vector<TokenId>& ids) const {
    auto model = std::make_shared<LanguageModel>(LanguageModel::load(folder_.path().string(), {.fast = false}));
    Engine engine(std::move(model), {.context = 64, .cache = CacheKind::float32});
    return engine.embed(ids);
  }

  Row product(const std::string& name, const Row& x) const {
    const Tensor<float>& matrix = weights_.at(name);
    Row y(matrix.shape()[0], 0.0);
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t j = 0; j < x.size(); ++j) y[i] += static_cast<double>(matrix.values()[i * x.size() + j]) * x[j];
    }
    return y;
  }

  /// RMS norm of each run of as many values as there are weights.
  Row norm(const std::string& name, Row x) const {
    const std::span<const float> weight = weights_.at(name).values();
    for (std::size_t at = 0; at < x.size(); at += weight.size()) {
      double sum = 0;
      for (std::size_t i = 0; i < weight.size(); ++i) sum += x[at + i] * x[at + i];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(weight.size()) + kEps);
      for (std::size_t i = 0; i < weight.size(); ++i) x[at + i] *= scale * (1 + static_cast<double>(weight[i]));
    }
    return x;
  }

  static void turn(Row& x, std::size_t position, double base) {
    constexpr std::size_t kHalf = kHeadValues / 2;
    for (std::size_t at = 0; at < x.size(); at += kHeadValues) {
      for (std::size_t j = 0; j < kHalf; ++j) {
        const double exponent = -static_cast<double>(j) / static_cast<double>(kHalf);
        const double angle = static_cast<double>(position) * std::pow(base, exponent);
        const double a = x[at + j], b = x[at + kHalf + j];
        x[at + j] = a * std::cos(angle) - b * std::sin(angle);
        x[at + kHalf + j] = b * std::cos(angle) + a * std::sin(angle);
      }
    }
  }

  static void add_to(Row& x, const Row& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  void attend(const std::string& in, bool window, Rows& x) const {
    Rows queries, keys, values;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const Row normed = norm(in + "input_layernorm.weight", x[t]);
      queries.push_back(norm(in + "self_attn.q_norm.weight", product(in + "self_attn.q_proj.weight", normed)));
      keys.push_back(norm(in + "self_attn.k_norm.weight", product(in + "self_attn.k_proj.weight", normed)));
      values.push_back(product(in + "self_attn.v_proj.weight", normed));
      turn(queries.back(), t, window ? kWindowBase : kBase);
      turn(keys.back(), t, window ? kWindowBase : kBase);
    }
    for (std::size_t t = 0; t < x.size(); ++t) {
      Row results(kHeads * kHeadValues, 0.0);
      for (std::size_t head = 0; head < kHeads; ++head) {
        Row weights(x.size(), 0.0);
        double sum = 0;
        for (std::size_t k = 0; k < x.size(); ++k) {
          if (window && (k > t ? k - t : t - k) > kReach) continue;
          double score = 0;
          for (std::size_t i = 0; i < kHeadValues; ++i) score += queries[t][head * kHeadValues + i] * keys[k][i];
          sum += weights[k] = std::exp(score / std::sqrt(kScalar));
        }
        for (std::size_t k = 0; k < x.size(); ++k) {
          for (std::size_t i = 0; i < kHeadValues; ++i) {
            results[head * kHeadValues + i] += weights[k] / sum * values[k][i];
          }
        }
      }
      add_to(x[t], norm(in + "post_attention_layernorm.weight", product(in + "self_attn.o_proj.weight", results)));
    }
  }

  void feed_forward(const std::string& in, Row& x) const {
    const Row normed = norm(in + "pre_feedforward_layernorm.weight", x);
    Row hidden = product(in + "mlp.gate_proj.weight", normed);
    const Row up = product(in + "mlp.up_proj.weight", normed);
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      const double g = hidden[i], inner = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
      hidden[i] = g / 2 * (1 + std::tanh(inner)) * up[i];
    }
    add_to(x, norm(in + "post_feedforward_layernorm.weight", product(in + "mlp.down_proj.weight", hidden)));
  }

  Row pooled(const std::vector<TokenId>& ids) const {
    Rows x;
    for (const TokenId id : ids) {
      Row& row = x.emplace_back();
      for (std::size_t i = 0; i < kWidth; ++i) {
        const float value = weights_.at("embed_tokens.weight").values()[static_cast<std::size_t>(id) * kWidth + i];
        row.push_back(static_cast<double>(value) * std::sqrt(static_cast<double>(kWidth)));
      }
    }
    for (std::size_t block = 0; block < kBlocks; ++block) {
      const std::string in = "layers." + std::to_string(block) + ".";
      attend(in, block != 1, x);
      for (Row& row : x) feed_forward(in, row);
    }
    Row mean(kWidth, 0.0);
    for (const Row& row : x) add_to(mean, norm("norm.weight", row));
    for (double& value : mean) value /= static_cast<double>(x.size());
    return mean;
  }

  static void expect_near(const std::vector<float>& got, const Row& wanted) {
    ASSERT_EQ(got.size(), wanted.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(static_cast<double>(got[i]), wanted[i], 1e-4) << i;
  }

  testing::TempDir folder_;
  std::map<std::string, Tensor<float>> weights_;
  unsigned seed_ = 0;
};

const std::vector<TokenId> kText = {3, 1, 4, 1, 5, 9, 2, 6, 19, 0, 7};

TEST_F(EmbeddingGemma, IsThatOfPlainLoops) {
  Row hidden = product("2_Dense.linear.weight", pooled(kText));
  for (std::size_t i = 0; i < kHidden; ++i) {
    hidden[i] = std::tanh(hidden[i] + static_cast<double>(weights_.at("2_Dense.linear.bias").values()[i]));
  }
  expect_near(embed(kText), product("3_Dense.linear.weight", hidden));
}

TEST_F(EmbeddingGemma, HasAsManyDenseLayersAsItSays) {
  write_modules({"1_Pooling.Pooling"});
  expect_near(embed(kText), pooled(kText));
  write_dense("2_Dense", kWidth, kResults, "torch.nn.modules.activation.Tanh", false);
  write_modules({"1_Pooling.Pooling", "2_Dense.Dense"});
  Row wanted = product("2_Dense.linear.weight", pooled(kText));
  for (double& value : wanted) value = std::tanh(value);
  expect_near(embed(kText), wanted);
}

TEST_F(EmbeddingGemma, RefusesModulesThatItDoesNotKnow) {
  const auto load = [&] { LanguageModel::load(folder_.path().string()); };
  write_modules({"1_Pooling.Pooling", "2_Dense.LayerNorm"});
  EXPECT_THROW(load(), UnsupportedError);
  write_modules({"1_Pooling.Pooling", "2_Dense.Dense", "3_Dense.Dense", "3_Dense.Dense"});
  EXPECT_THROW(load(), UnsupportedError);
  write_modules({"1_Pooling.Pooling", "../2_Dense.Dense"});
  EXPECT_THROW(load(), FormatError);
  write_modules({"1_Pooling.Pooling", "3_Dense.Dense"});
  EXPECT_THROW(load(), FormatError) << "it has more inputs than there are values";
  write_modules({"1_Pooling.Pooling", "2_Dense.Dense"});
  write_dense("2_Dense", kWidth, kResults, "torch.nn.modules.activation.Softsign", false);
  EXPECT_THROW(load(), UnsupportedError);
  write_dense("2_Dense", kWidth, kResults, "torch.nn.modules.linear.Identity", false);
  load();
  folder_.write("2_Dense/config.json", R"({"in_features": 16, "out_features": 11})");
  EXPECT_THROW(load(), FormatError) << "the matrix has 10 rows";
}

}  // namespace
}  // namespace imago
