// Models there and back: folder to GGUF to folder, with the recipes carried out here in the plainest way.

#include "models/recipe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>

#include "imago/error.h"
#include "models/architectures.h"
#include "models/decoder_tensors.h"
#include "models/recipe_parts.h"
#include "models/rope.h"
#include "models/traits_reading.h"
#include "testing/problems.h"
#include "testing/temp_dir.h"
#include "testing/torch_models.h"

namespace imago::models {
namespace {

using testing::expect_found;

using files::StoredTensor;
using files::TensorFile;

/// Rows of heads in the order that llama.cpp wants: of [2][half] rows, [half][2].
std::vector<float> reordered(const std::vector<float>& rows, std::size_t heads, std::size_t cols, bool adjacent) {
  std::vector<float> out(rows.size());
  const std::size_t head_rows = rows.size() / cols / heads, half = head_rows / 2;
  for (std::size_t head = 0; head < heads; ++head) {
    for (std::size_t part = 0; part < 2; ++part) {
      for (std::size_t j = 0; j < half; ++j) {
        const std::size_t split = head * head_rows + part * half + j, woven = head * head_rows + 2 * j + part;
        const std::size_t from = adjacent ? split : woven, to = adjacent ? woven : split;
        std::copy_n(rows.data() + from * cols, cols, out.data() + to * cols);
      }
    }
  }
  return out;
}

/// Rows of q, k and v of each group together, or all q, then all k, then all v.
std::vector<float> regrouped(const std::vector<float>& rows, const TensorRecipe& recipe, std::size_t cols,
                             bool together) {
  std::vector<float> out(rows.size());
  std::size_t grouped = 0;
  for (std::size_t group = 0; group < recipe.heads; ++group) {
    std::size_t section = 0;
    for (const std::size_t count : recipe.group_rows) {
      const std::size_t apart = section + group * count;
      const std::size_t from = together ? apart : grouped, to = together ? grouped : apart;
      std::copy_n(rows.data() + from * cols, count * cols, out.data() + to * cols);
      grouped += count;
      section += count * recipe.heads;
    }
  }
  return out;
}

/// The heads of all groups by turns, or back: rows, or values of each row.
std::vector<float> tiled(const std::vector<float>& values, const HeadOrder& order, std::size_t cols) {
  std::vector<float> out = values;
  const std::size_t rows = order.columns ? values.size() / cols : 1;
  const std::size_t width = order.values * (order.columns ? 1 : cols);  // of a head
  const std::size_t first = order.first * (order.columns ? 1 : cols);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t group = 0; group < order.groups; ++group) {
      for (std::size_t head = 0; head < order.group_heads; ++head) {
        std::size_t from = group * order.group_heads + head, to = head * order.groups + group;
        if (!order.to_tiled) std::swap(from, to);
        const std::size_t start = row * cols + first;
        std::copy_n(values.data() + start + from * width, width, out.data() + start + to * width);
      }
    }
  }
  return out;
}

std::vector<float> carried_out(const TensorRecipe& recipe) {
  std::vector<float> values;
  if (recipe.transform == RowTransform::weave) {
    values.resize(recipe.shape.elements());
    apply_recipe(recipe, values);
    return values;
  }
  for (const SourceRows& part : recipe.parts) {
    std::vector<float> piece(part.rows * part.tensor->cols());
    files::decode_tensor(*part.tensor, part.first_row * part.tensor->cols(), piece);
    values.insert(values.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(values.size(), recipe.shape.elements()) << recipe.name;
  const std::size_t cols = recipe.shape.rank() < 2 ? 1 : recipe.shape.last();
  switch (recipe.transform) {
    case RowTransform::none: break;
    case RowTransform::weave: break;  // what comes back tells
    case RowTransform::to_adjacent: return reordered(values, recipe.heads, cols, true);
    case RowTransform::to_halves: return reordered(values, recipe.heads, cols, false);
    case RowTransform::to_sections: return regrouped(values, recipe, cols, false);
    case RowTransform::to_groups: return regrouped(values, recipe, cols, true);
    case RowTransform::transpose: {
      const std::vector<float> before = values;
      const std::size_t rows = recipe.shape[0];
      for (std::size_t r = 0; r < rows; ++r) {
        for (std::size_t c = 0; c < cols; ++c) values[r * cols + c] = before[c * rows + r];
      }
      break;
    }
    case RowTransform::add_one:
      for (float& value : values) value += 1;
      break;
    case RowTransform::subtract_one:
      for (float& value : values) value -= 1;
      break;
    case RowTransform::to_rates:
      for (float& value : values) value = -std::exp(value);
      break;
    case RowTransform::to_log_rates:
      for (float& value : values) value = std::log(-value);
      break;
    case RowTransform::scale: {
      auto value = values.begin();
      for (const RowFactor& part : recipe.factors) {
        for (std::size_t i = 0; i < part.rows * cols; ++i) *value++ *= part.factor;
      }
      EXPECT_EQ(value, values.end()) << recipe.name;
      break;
    }
  }
  return recipe.order ? tiled(values, *recipe.order, cols) : values;
}

std::vector<std::uint16_t> bfloat16_codes(const std::vector<float>& values) {
  std::vector<std::uint16_t> codes(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, &values[i], sizeof bits);
    codes[i] = static_cast<std::uint16_t>(bits >> 16);
  }
  return codes;
}

/// Writes what the recipe says: bfloat16 where a source is that and nothing else is preferred, else float32.
void write_gguf(const ModelRecipe& recipe, const std::string& path) {
  const auto is_bfloat16 = [](const TensorRecipe& tensor) {
    return !tensor.preferred && tensor.parts[0].tensor->format == Format(DType::bfloat16);
  };
  std::vector<GgufEntry> entries;
  for (const TensorRecipe& tensor : recipe.tensors) {
    entries.push_back(
        {tensor.name, gguf_tensor_type(is_bfloat16(tensor) ? DType::bfloat16 : DType::float32), tensor.shape});
  }
  GgufWriter writer(path, recipe.gguf_metadata, entries);
  for (const TensorRecipe& tensor : recipe.tensors) {
    const std::vector<float> values = carried_out(tensor);
    if (is_bfloat16(tensor)) {
      const std::vector<std::uint16_t> codes = bfloat16_codes(values);
      writer.write(tensor.name, std::as_bytes(std::span(codes)));
    } else {
      writer.write(tensor.name, values);
    }
  }
  writer.commit();
}

const std::string& side_file(const ModelRecipe& recipe, const std::string& name) {
  for (const auto& file : recipe.side_files) {
    if (file.name == name) return file.text;
  }
  throw std::runtime_error("no " + name);
}

/// What llama.cpp's converter multiplies the rows of a weight of falcon_h1_bf16 by.
float folded(const std::string& name, std::size_t row) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (ends("embed_tokens.weight")) return 2.0F;
  if (ends("lm_head.weight")) return 0.5F;
  if (ends("k_proj.weight")) return 0.7F;  // the multiplier before queries, keys and values is 1
  if (ends("o_proj.weight")) return 0.9F;
  if (ends("mamba.out_proj.weight")) return 1.1F;
  if (ends("gate_proj.weight")) return 0.8F;
  if (ends("down_proj.weight")) return 1.2F;
  if (!ends("mamba.in_proj.weight")) return 1;
  const float by[] = {0.9F, 0.8F, 1.1F, 1.2F, 0.7F};  // 64 of gates, 64 of values, 16 each of B and C, 4 of steps
  return 1.2F * by[row < 64 ? 0 : row < 128 ? 1 : row < 144 ? 2 : row < 160 ? 3 : 4];
}

void expect_there_and_back(const std::string& model) {
  const std::optional<std::string> folder = testing::find_torch_model(model);
  ASSERT_TRUE(folder);
  const TensorFile source = TensorFile::open(*folder);
  const Traits traits = read_traits(source);
  const ModelRecipe there = make_recipe(source, FileForm::gguf);
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  write_gguf(there, path);

  const TensorFile gguf = TensorFile::open(path);
  const Traits between = read_traits(gguf);
  Traits wanted = traits;
  wanted.rope_pairs = between.rope_pairs;
  wanted.norm_offset = 0;
  wanted.recurrent.log_rates = false;
  wanted.recurrent.scan.tiled = between.recurrent.scan.tiled;
  const RopeScaling::Kind kind = wanted.rope_scaling.kind;
  if (kind == RopeScaling::Kind::llama3 || kind == RopeScaling::Kind::proportional) {
    wanted.rope_scaling = {};  // its factors are a tensor
  }
  const bool folds = traits.architecture == Architecture::falcon_h1;
  if (folds) {  // they are in the weights from here on
    wanted.multipliers = {};
    wanted.embedding_scale = wanted.logit_scale = 1;
  }
  EXPECT_EQ(between, wanted) << model;
  const DecoderTensors tensors(gguf, between);
  EXPECT_TRUE(tensors.unused().empty()) << model;
  for (const StoredTensor& tensor : gguf.tensors()) {
    EXPECT_TRUE(tensor.shape.rank() > 1 || tensor.type == "F32") << tensor.name << " " << tensor.type;
  }

  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  const files::JsonFile config = files::JsonFile::parse(side_file(back, "config.json"), "config.json");
  Traits again = config_traits(config);
  if (names_bare_model(config)) again.has_output = false;  // there is no tensor that says otherwise
  if (folds) {
    EXPECT_NE(again, traits);
    again.multipliers = traits.multipliers;
    again.embedding_scale = traits.embedding_scale;
    again.logit_scale = traits.logit_scale;
  }
  EXPECT_EQ(again, traits) << model << side_file(back, "config.json");
  const std::size_t unused = DecoderTensors(source, traits).unused().size();
  ASSERT_EQ(back.tensors.size(), source.tensors().size() - unused) << model;
  for (const TensorRecipe& recipe : back.tensors) {
    const StoredTensor* const found = find_weight(source, recipe.name);  // folders of bare models lack a prefix
    ASSERT_NE(found, nullptr) << recipe.name;
    const StoredTensor& original = *found;
    EXPECT_EQ(recipe.shape, original.shape) << recipe.name;
    std::vector<float> values(original.shape.elements());
    files::decode_tensor(original, 0, values);
    const std::vector<float> got = carried_out(recipe);
    const bool rounds =
        recipe.transform == RowTransform::subtract_one || recipe.transform == RowTransform::to_log_rates;
    const float tolerance = rounds ? 3e-7F : 0;  // float32 near 1
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float factor = folds ? folded(recipe.name, i / original.shape.last()) : 1;
      const float rounded = factor == 1 ? 0 : std::abs(values[i]) * factor / 128;  // to bfloat16
      ASSERT_LE(std::abs(got[i] - values[i] * factor), tolerance + rounded) << model << " " << recipe.name << " " << i;
    }
  }
}

TEST(Recipe, EveryModelGoesToGgufAndBack) {
  for (const std::string model : testing::kTorchModels) {
    if (!testing::find_torch_model(model)) GTEST_SKIP() << testing::missing_torch_model(model);
    expect_there_and_back(model);
  }
}

TEST(Recipe, ModelsOfEmbeddingsGoToGgufAndBack) {
  for (const std::string model : testing::kEmbeddingModels) {
    if (!testing::find_torch_model(model)) GTEST_SKIP() << testing::missing_torch_model(model);
    expect_there_and_back(model);
  }
}

/// A folder of that many tensors of zeros, of the names and shapes that the traits ask for.
void write_zeros(const testing::TempDir& folder, const std::string& config) {
  folder.write("config.json", config);
  const Traits traits = config_traits(files::JsonFile::parse(config, "config.json"));
  std::vector<std::pair<std::string, Tensor<float>>> tensors;
  for_each_tensor(traits, usual_naming(traits, false), [&](const LayoutTensor& tensor, std::size_t) {
    tensors.emplace_back(tensor.name, Tensor<float>(tensor.shape));
  });
  save_safetensors((folder.path() / "model.safetensors").string(), tensors);
}

TEST(Recipe, PoolingAndClassifiersGoToGgufAndBack) {
  const std::string sizes =
      R"("model_type": "bert", "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2,
         "intermediate_size": 16, "vocab_size": 32, "max_position_embeddings": 16, "hidden_act": "gelu")";
  const auto gguf_of = [](const testing::TempDir& folder) {
    write_gguf(make_recipe(TensorFile::open(folder.path().string()), FileForm::gguf),
               (folder.path() / "m.gguf").string());
    return TensorFile::open((folder.path() / "m.gguf").string());
  };
  for (const auto& [key, pooling] :
       {std::pair{"pooling_mode_mean_tokens", Pooling::mean}, std::pair{"pooling_mode_cls_token", Pooling::cls},
        std::pair{"pooling_mode_lasttoken", Pooling::last}}) {
    const testing::TempDir folder;
    write_zeros(folder, "{" + sizes + R"(, "architectures": ["BertModel"]})");
    folder.write("modules.json", R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
                                     {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])");
    folder.write("1_Pooling/config.json", "{\"" + std::string(key) + "\": true}");
    EXPECT_EQ(read_traits(TensorFile::open(folder.path().string())).pooling, pooling) << key;
    const TensorFile gguf = gguf_of(folder);
    EXPECT_EQ(read_traits(gguf).pooling, pooling) << key;
    EXPECT_EQ(gguf.gguf()->require("bert.pooling_type").integer(), static_cast<std::int64_t>(pooling));
    const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
    EXPECT_EQ(read_pooling(files::JsonFile::parse(side_file(back, "1_Pooling/config.json"), "config.json")), pooling);
  }

  const testing::TempDir folder;
  write_zeros(folder, "{" + sizes + R"(, "architectures": ["BertForSequenceClassification"], "id2label": {"0": "x"}})");
  const Traits traits = read_traits(TensorFile::open(folder.path().string()));
  EXPECT_EQ(traits.head, (Head{.results = 1, .hidden = 8, .activation = kernels::Activation::tanh, .scores = true}));
  const TensorFile gguf = gguf_of(folder);
  EXPECT_EQ(gguf.gguf()->require("bert.pooling_type").integer(), 4) << "rank";
  EXPECT_EQ(gguf.require("cls.output.weight").shape, (Shape{1, 8}));
  EXPECT_EQ(gguf.require("cls.weight").shape, (Shape{8, 8}));
  EXPECT_EQ(read_traits(gguf), traits);
  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  EXPECT_EQ(config_traits(files::JsonFile::parse(side_file(back, "config.json"), "config.json")), traits);
}

TEST(Recipe, MoreModelsGoToGgufAndBack) {
  for (const std::string model : testing::kMoreModels) {
    if (!testing::find_torch_model(model)) GTEST_SKIP() << testing::missing_torch_model(model);
    expect_there_and_back(model);
  }
}

TEST(Recipe, DenseModulesGoToGgufAndBack) {
  const testing::TempDir folder;
  write_zeros(folder, R"({"model_type": "gemma3_text", "use_bidirectional_attention": true, "hidden_size": 8,
      "num_attention_heads": 2, "head_dim": 4, "num_key_value_heads": 1, "num_hidden_layers": 2, "vocab_size": 32,
      "intermediate_size": 16, "max_position_embeddings": 16, "query_pre_attn_scalar": 4, "sliding_window": 4,
      "layer_types": ["sliding_attention", "full_attention"], "architectures": ["Gemma3TextModel"]})");
  Tensor<float> first({12, 8}), second({6, 12}), bias({6});
  for (Tensor<float>* const tensor : {&first, &second, &bias}) {
    for (std::size_t i = 0; i < tensor->values().size(); ++i) tensor->values()[i] = static_cast<float>(i) / 8;
  }
  const auto write_dense = [&](const std::string& path, const std::string& sizes, const auto& tensors) {
    folder.write(path + "/config.json",
                 "{" + sizes + R"(, "activation_function": "torch.nn.modules.linear.Identity"})");
    save_safetensors((folder.path() / path / "model.safetensors").string(), tensors);
  };
  using Tensors = std::vector<std::pair<std::string, Tensor<float>>>;
  write_dense("2_Dense", R"("in_features": 8, "out_features": 12)", Tensors{{"linear.weight", first}});
  write_dense("other", R"("in_features": 12, "out_features": 6)",
              Tensors{{"linear.weight", second}, {"linear.bias", bias}});
  folder.write("1_Pooling/config.json", R"({"pooling_mode_mean_tokens": true})");
  folder.write("modules.json", R"([{"path": "", "type": "sentence_transformers.models.Transformer"},
                                   {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                                   {"path": "2_Dense", "type": "sentence_transformers.models.Dense"},
                                   {"path": "other", "type": "sentence_transformers.models.Dense"},
                                   {"path": "4_Normalize", "type": "sentence_transformers.models.Normalize"}])");
  const TensorFile source = TensorFile::open(folder.path().string());
  Traits traits = read_traits(source);
  EXPECT_EQ(traits.head, (Head{.results = 6, .hidden = 12}));
  EXPECT_EQ(traits.architecture, Architecture::embedding_gemma);
  EXPECT_FALSE(traits.causal);
  const std::string path = (folder.path() / "m.gguf").string();
  write_gguf(make_recipe(source, FileForm::gguf), path);
  const TensorFile gguf = TensorFile::open(path);
  EXPECT_EQ(gguf.gguf()->architecture(), "gemma-embedding");
  EXPECT_EQ(gguf.gguf()->require("gemma-embedding.dense_2_feat_out").integer(), 12);
  EXPECT_EQ(gguf.gguf()->require("gemma-embedding.dense_3_feat_in").integer(), 12);
  EXPECT_EQ(gguf.require("dense_3.weight").shape, (Shape{6, 12}));
  Traits between = read_traits(gguf);
  between.norm_offset = 1;
  EXPECT_EQ(between, traits);

  // Back, where the modules are files of their own again.
  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  const testing::TempDir again;
  Tensors weights;
  for (const TensorRecipe& tensor : back.tensors) weights.emplace_back(tensor.name, Tensor<float>(tensor.shape));
  save_safetensors((again.path() / "model.safetensors").string(), weights);
  for (const auto& file : back.side_files) again.write(file.name, file.text);
  const TensorFile copy = TensorFile::open(again.path().string());
  EXPECT_EQ(read_traits(copy), traits);
  for (const auto& [name, tensor] :
       {std::pair("2_Dense.linear.weight", &first), std::pair("3_Dense.linear.weight", &second),
        std::pair("3_Dense.linear.bias", &bias)}) {
    std::vector<float> values(tensor->values().size());
    files::decode_tensor(copy.require(name), 0, values);
    EXPECT_TRUE(std::ranges::equal(values, tensor->values())) << name;
  }

  // A folder keeps them, too.
  const ModelRecipe same = make_recipe(source, FileForm::huggingface);
  EXPECT_EQ(same.tensors.size(), source.tensors().size() - 3);
  EXPECT_GT(side_file(same, "other/model.safetensors").size(), 6U * 12U * sizeof(float));
  EXPECT_NE(side_file(same, "2_Dense/config.json").find("Identity"), std::string::npos);
}

// transformers gives tokens beyond the table those of the first one, and llama.cpp wants a row for each token.
TEST(Recipe, InputsOfLayersForSomeTokensAreForAllInGguf) {
  const testing::TempDir folder;
  write_zeros(folder, R"({"model_type": "gemma3n_text", "hidden_size": 8, "num_attention_heads": 2, "head_dim": 4,
      "num_key_value_heads": 1, "num_hidden_layers": 2, "intermediate_size": [16, 24], "num_kv_shared_layers": 0,
      "vocab_size": 32, "vocab_size_per_layer_input": 29, "hidden_size_per_layer_input": 4, "laurel_rank": 2,
      "activation_sparsity_pattern": [0.9, 0], "altup_num_inputs": 3, "max_position_embeddings": 16,
      "layer_types": ["full_attention", "full_attention"]})");
  const TensorFile source = TensorFile::open(folder.path().string());
  const ModelRecipe recipe = make_recipe(source, FileForm::gguf);
  const auto table = std::ranges::find(recipe.tensors, "per_layer_token_embd.weight", &TensorRecipe::name);
  ASSERT_NE(table, recipe.tensors.end());
  EXPECT_EQ(table->shape, (Shape{32, 8}));
  ASSERT_EQ(table->parts.size(), 4U);
  EXPECT_EQ(table->parts[0].rows, 29U);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(table->parts[i].first_row, 0U);
    EXPECT_EQ(table->parts[i].rows, 1U);
  }
  const std::string path = (folder.path() / "m.gguf").string();
  write_gguf(recipe, path);
  const TensorFile gguf = TensorFile::open(path);
  Traits wanted = read_traits(source);
  wanted.layer_vocabulary = 32;
  EXPECT_EQ(read_traits(gguf), wanted);
  EXPECT_EQ(gguf.require("altup_proj.weight").shape, (Shape{2, 8, 8}));
  EXPECT_EQ(gguf.require("blk.1.ffn_up.weight").shape, (Shape{24, 8}));
}

std::map<std::string, const TensorRecipe*> by_name(const ModelRecipe& recipe) {
  std::map<std::string, const TensorRecipe*> map;
  for (const TensorRecipe& tensor : recipe.tensors) map[tensor.name] = &tensor;
  return map;
}

TEST(Recipe, WhatTensorsAreFor) {
  const std::optional<std::string> folder = testing::find_torch_model("mixtral_moe_f32");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("mixtral_moe_f32");
  const TensorFile source = TensorFile::open(*folder);
  const ModelRecipe recipe = make_recipe(source, FileForm::gguf);
  const auto tensors = by_name(recipe);
  EXPECT_EQ(tensors.at("token_embd.weight")->use, TensorUse::embedding);
  EXPECT_EQ(tensors.at("output.weight")->use, TensorUse::output);
  EXPECT_EQ(tensors.at("blk.1.attn_v.weight")->use, TensorUse::attention_value);
  EXPECT_EQ(tensors.at("blk.1.attn_q.weight")->transform, RowTransform::to_adjacent);
  EXPECT_EQ(tensors.at("blk.1.attn_q.weight")->heads, 4U);
  EXPECT_EQ(tensors.at("blk.1.attn_k.weight")->heads, 2U);
  EXPECT_EQ(tensors.at("blk.1.attn_v.weight")->transform, RowTransform::none);
  const TensorRecipe& down = *tensors.at("blk.1.ffn_down_exps.weight");
  EXPECT_EQ(down.use, TensorUse::down);
  EXPECT_EQ(down.block, 1U);
  EXPECT_EQ(down.blocks, 2U);
  EXPECT_EQ(down.shape, (Shape{4, 64, 128}));
  ASSERT_EQ(down.parts.size(), 4U);
  EXPECT_EQ(down.parts[3].tensor->name, "model.layers.1.block_sparse_moe.experts.3.w2.weight");
  EXPECT_EQ(tensors.at("blk.0.ffn_gate_inp.weight")->use, TensorUse::router);
  EXPECT_EQ(tensors.at("blk.0.ffn_gate_inp.weight")->preferred, Format(DType::float32));
  EXPECT_EQ(tensors.at("blk.0.attn_norm.weight")->use, TensorUse::vector);
  EXPECT_FALSE(down.preferred);

  // The same form to itself says the same of its own names.
  const ModelRecipe same = make_recipe(source, FileForm::huggingface);
  EXPECT_EQ(by_name(same).at("model.layers.1.self_attn.v_proj.weight")->use, TensorUse::attention_value);
  EXPECT_EQ(by_name(same).at("model.layers.1.self_attn.v_proj.weight")->block, 1U);
  EXPECT_EQ(by_name(same).at("lm_head.weight")->blocks, 2U);
}

TEST(Recipe, VectorsTakeTheTypeOfTheModelAgain) {
  const std::optional<std::string> folder = testing::find_torch_model("llama_untied_bf16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("llama_untied_bf16");
  const TensorFile source = TensorFile::open(*folder);
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  write_gguf(make_recipe(source, FileForm::gguf), path);
  const TensorFile gguf = TensorFile::open(path);
  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  for (const TensorRecipe& tensor : back.tensors) {
    const bool vector = tensor.shape.rank() < 2;
    EXPECT_EQ(tensor.preferred.has_value(), vector) << tensor.name;
    EXPECT_EQ(tensor.preferred_if_exact, vector) << tensor.name;
    EXPECT_EQ(tensor.preferred.value_or(DType::bfloat16), Format(DType::bfloat16)) << tensor.name;
  }
  EXPECT_NE(side_file(back, "config.json").find("\"dtype\": \"bfloat16\""), std::string::npos);
}

TEST(Recipe, Llama3ScalingIsFoundInItsFactors) {
  const std::optional<std::string> folder = testing::find_torch_model("llama3_rope_scaling_f16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("llama3_rope_scaling_f16");
  const TensorFile source = TensorFile::open(*folder);
  ModelRecipe there = make_recipe(source, FileForm::gguf);
  // As llama.cpp's converter computes them: theta 500000, 16 values a head, factor 8, context 32.
  const std::vector<float> factors = carried_out(*by_name(there).at("rope_freqs.weight"));
  ASSERT_EQ(factors.size(), 8U);
  EXPECT_EQ(factors[0], 1);  // wavelength 2π < 32 / 4
  // 2π · 500000^(1/8) = 32.4 > 32
  for (std::size_t i = 1; i < 8; ++i) EXPECT_EQ(factors[i], 8) << i;

  std::erase_if(there.gguf_metadata, [](const GgufMetadata& entry) { return entry.key.starts_with("imago."); });
  const testing::TempDir temp;
  write_gguf(there, (temp.path() / "m.gguf").string());
  const TensorFile gguf = TensorFile::open((temp.path() / "m.gguf").string());
  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  const Traits found = config_traits(files::JsonFile::parse(side_file(back, "config.json"), "config.json"));
  EXPECT_EQ(found.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(found.rope_scaling.factor, 8);

  // Llama 3.2 1B: 64 values a head, factor 32, context 8192.
  const RopeScaling scaling{.kind = RopeScaling::Kind::llama3, .factor = 32, .original_context = 8192};
  const Rope rope{.base = 500000, .rotary = 64, .scaling = scaling};
  std::vector<float> divisors = llama3_divisors(rope);
  EXPECT_EQ(llama3_scaling(rope, divisors), scaling);
  divisors[20] *= 1.5F;
  EXPECT_FALSE(llama3_scaling(rope, divisors));
}

/// A llama of one block without sense, with a tokenizer of three tokens for an embedding of five.
TEST(Recipe, TokenizersGoAlong) {
  const testing::TempDir temp;
  temp.write("config.json", R"({"model_type": "llama", "hidden_size": 4, "num_attention_heads": 2, "vocab_size": 5,
      "num_hidden_layers": 1, "intermediate_size": 6, "rms_norm_eps": 1e-5, "max_position_embeddings": 8,
      "tie_word_embeddings": true})");
  temp.write("tokenizer.json", R"({"version": "1.0", "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
      "post_processor": null, "decoder": {"type": "ByteLevel"},
      "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}})");
  std::vector<std::pair<std::string, Tensor<float>>> weights = {
      {"model.embed_tokens.weight", Tensor<float>(Shape{5, 4})}, {"model.norm.weight", Tensor<float>(Shape{4})}};
  const auto add = [&](const char* name, const Shape& shape) {
    weights.emplace_back(std::string("model.layers.0.") + name + ".weight", Tensor<float>(shape));
  };
  add("input_layernorm", {4});
  add("post_attention_layernorm", {4});
  for (const char* matrix : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) {
    add(matrix, {4, 4});
  }
  add("mlp.gate_proj", {6, 4});
  add("mlp.up_proj", {6, 4});
  add("mlp.down_proj", {4, 6});
  save_safetensors((temp.path() / "model.safetensors").string(), weights);

  const TensorFile folder = TensorFile::open(temp.path().string());
  const testing::TempDir other;
  write_gguf(make_recipe(folder, FileForm::gguf), (other.path() / "m.gguf").string());
  const TensorFile gguf = TensorFile::open((other.path() / "m.gguf").string());
  const GgufArray& tokens = gguf.gguf()->require_array("tokenizer.ggml.tokens", GgufType::string);
  ASSERT_EQ(tokens.size(), 5U);  // one for each row, as llama.cpp wants it
  EXPECT_EQ(tokens.strings()[2], "ab");
  EXPECT_EQ(tokens.strings()[4], "[PAD4]");

  const ModelRecipe back = make_recipe(gguf, FileForm::huggingface);
  const Vocabulary vocabulary =
      read_vocabulary(files::JsonFile::parse(side_file(back, "tokenizer.json"), "tokenizer.json"));
  ASSERT_EQ(vocabulary.tokens.size(), 3U);
  EXPECT_EQ(vocabulary.tokens[2].text, "ab");
  EXPECT_FALSE(side_file(back, "tokenizer_config.json").empty());
  EXPECT_FALSE(side_file(back, "generation_config.json").empty());

  std::string config(folder.folder()->config().text());
  config.replace(config.find("\"vocab_size\": 5"), 15, "\"vocab_size\": 2");
  temp.write("config.json", config);
  weights[0].second = Tensor<float>(Shape{2, 4});
  save_safetensors((temp.path() / "model.safetensors").string(), weights);
  const TensorFile small = TensorFile::open(temp.path().string());
  try {
    make_recipe(small, FileForm::gguf);
    FAIL() << "no error";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("the tokenizer has 3 tokens, but vocab_size is 2"), std::string::npos)
        << error.what();
  }
}

std::string problem_of(const TensorFile& file, FileForm target) {
  try {
    make_recipe(file, target);
  } catch (const UnsupportedError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Recipe, BagsKeepNamesAndShapes) {
  const testing::TempDir temp;
  const std::string path = (temp.path() / "t.safetensors").string();
  save_safetensors(path, std::vector<std::pair<std::string, Tensor<float>>>{{"a", Tensor<float>(Shape{2, 3})},
                                                                            {"b", Tensor<float>(Shape{4})}});
  const TensorFile file = TensorFile::open(path);
  for (const FileForm target : {FileForm::gguf, FileForm::safetensors}) {
    const ModelRecipe recipe = make_recipe(file, target);
    ASSERT_EQ(recipe.tensors.size(), 2U);
    EXPECT_EQ(by_name(recipe).at("a")->shape, (Shape{2, 3}));
    EXPECT_EQ(by_name(recipe).at("a")->blocks, 0U);
    EXPECT_EQ(by_name(recipe).at("b")->use, TensorUse::vector);
    EXPECT_TRUE(recipe.gguf_metadata.empty());
  }
  expect_found(problem_of(file, FileForm::huggingface), "a Hugging Face folder needs a model with an architecture");
  expect_found(problem_of(file, FileForm::entity), "cannot become a file of format 'entity'");
}

TEST(Recipe, LimitsOfGguf) {
  const testing::TempDir temp;
  const auto problem = [&](const std::string& name, const Shape& shape) {
    const std::string path = (temp.path() / "t.safetensors").string();
    save_safetensors(path, std::vector<std::pair<std::string, Tensor<float>>>{{name, Tensor<float>(shape)}});
    return problem_of(TensorFile::open(path), FileForm::gguf);
  };
  EXPECT_EQ(problem(std::string(63, 'x'), Shape{1, 1, 1, 1}), "no error");
  expect_found(problem(std::string(64, 'x'), Shape{1}), "has a name of 64 bytes; GGUF allows 63");
  expect_found(problem("five", Shape{1, 1, 1, 1, 1}), "tensor 'five' has 5 dimensions; GGUF allows 4");
}

TEST(Recipe, GgufToItselfKeepsItsMetadata) {
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  const std::vector<GgufMetadata> metadata = {{"general.architecture", "unheard_of"},
                                              {"general.file_type", std::uint32_t{1}},
                                              {"unheard_of.block_count", std::uint32_t{3}}};
  GgufWriter writer(path, metadata, {{"w", gguf_tensor_type(DType::float32), Shape{2}}});
  writer.write("w", std::vector<float>{1, 2});
  writer.commit();
  const TensorFile file = TensorFile::open(path);
  const ModelRecipe recipe = make_recipe(file, FileForm::gguf);
  ASSERT_EQ(recipe.gguf_metadata.size(), 2U);
  EXPECT_EQ(recipe.gguf_metadata[0].value, metadata[0].value);
  EXPECT_EQ(recipe.gguf_metadata[1].value, metadata[2].value);
  ASSERT_EQ(recipe.notes.size(), 1U);
  expect_found(recipe.notes[0], "models of architecture 'unheard_of' are not supported");
  expect_found(problem_of(file, FileForm::huggingface), "'unheard_of' are not supported; known are llama");
}

TEST(Recipe, AFolderToItselfKeepsItsFiles) {
  const testing::TempDir temp;
  temp.write("config.json", R"({ "model_type":"t5" })");
  temp.write("merges.txt", "a b\n");
  temp.write("secret.txt", "no part of a model");
  save_safetensors((temp.path() / "model.safetensors").string(),
                   std::vector<std::pair<std::string, Tensor<float>>>{{"a", Tensor<float>(Shape{2, 3})}});
  const TensorFile file = TensorFile::open(temp.path().string());
  const ModelRecipe recipe = make_recipe(file, FileForm::huggingface);
  ASSERT_EQ(recipe.side_files.size(), 2U);
  EXPECT_EQ(side_file(recipe, "config.json"), R"({ "model_type":"t5" })");
  EXPECT_EQ(side_file(recipe, "merges.txt"), "a b\n");
  expect_found(problem_of(file, FileForm::gguf), "models of type 't5' are not supported");
  EXPECT_TRUE(make_recipe(file, FileForm::safetensors).side_files.empty());
}

TEST(Recipe, WhatGgufCannotSay) {
  const auto small = [](const char* fields) {
    return config_traits(files::JsonFile::parse(
        R"({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 8,
            "vocab_size": 9, "max_position_embeddings": 4096, "head_dim": 16, )" +
            std::string(fields) + "}",
        "config.json"));
  };
  const auto refused = [&](const char* fields) {
    try {
      gguf_losses(small(fields), "m");
    } catch (const UnsupportedError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(refused(R"("model_type": "llama")"), "no error");
  EXPECT_EQ(refused(R"("model_type": "llama", "hidden_act": "relu")"),
            "m: GGUF cannot express a llama model with another activation than the usual one");
  expect_found(refused(R"("model_type": "llama", "partial_rotary_factor": 0.5)"), "whose heads rotate only in part");
  EXPECT_EQ(refused(R"("model_type": "phi3", "partial_rotary_factor": 0.5)"), "no error");
  expect_found(
      refused(R"("model_type": "qwen2", "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1,
                          "high_freq_factor": 4, "original_max_position_embeddings": 32})"),
      "with rope scaling of type llama3");
  expect_found(refused(R"("model_type": "gemma2", "tie_word_embeddings": false)"), "with an output matrix of its own");
  const auto notes = [&](const char* fields) { return gguf_losses(small(fields), "m"); };
  EXPECT_TRUE(notes(R"("model_type": "gemma2")").empty());
  EXPECT_TRUE(notes(R"("model_type": "smollm3")").empty());
  expect_found(notes(R"("model_type": "mistral", "sliding_window": 9)").at(0), "the sliding window of 9 is stated");
  expect_found(notes(R"("model_type": "smollm3", "no_rope_layers": [0, 1, 1, 1])").at(0), "every fourth");
  expect_found(notes(R"("model_type": "gemma2", "final_logit_softcapping": null)").at(0), "without soft caps");
  expect_found(notes(R"("model_type": "exaone4", "sliding_window": 9)").at(0), "unless there are 64 blocks");
  expect_found(
      notes(R"("model_type": "olmoe", "num_key_value_heads": 2, "num_experts": 8, "num_experts_per_tok": 2)").at(0),
      "as many heads of keys");
  expect_found(notes(R"("model_type": "deepseek_v2", "kv_lora_rank": 32, "q_lora_rank": null, "qk_nope_head_dim": 16,
                        "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2,
                        "n_shared_experts": 2, "moe_intermediate_size": 5, "first_k_dense_replace": 1)")
                   .at(0),
               "26 or 27 blocks");
}

// llama.cpp's converter leaves the key out where transformers 5 has saved the folder.
TEST(Recipe, DeepseekV3IsKnownByItsBiases) {
  const std::optional<std::string> folder = testing::find_torch_model("deepseek_v3_bf16");
  if (!folder) GTEST_SKIP() << testing::missing_torch_model("deepseek_v3_bf16");
  const TensorFile source = TensorFile::open(*folder);
  ModelRecipe recipe = make_recipe(source, FileForm::gguf);
  ASSERT_EQ(std::erase_if(recipe.gguf_metadata,
                          [](const GgufMetadata& entry) { return entry.key == "deepseek2.expert_gating_func"; }),
            1u);
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  write_gguf(recipe, path);
  const Traits traits = read_traits(TensorFile::open(path));
  EXPECT_EQ(traits.architecture, Architecture::deepseek_v3);
  EXPECT_EQ(traits.expert_scores, ExpertScores::sigmoid);
  EXPECT_TRUE(traits.two_judge_group);
}

// llama.cpp caps the logits of gemma4 at 30 where the file does not say that it has no cap.
TEST(Recipe, NoCapIsStated) {
  const Traits traits = config_traits(files::JsonFile::parse(
      R"({"model_type": "gemma4_text", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "head_dim": 16,
          "intermediate_size": 8, "vocab_size": 9, "max_position_embeddings": 4096, "final_logit_softcapping": null})",
      "config.json"));
  ASSERT_EQ(traits.logit_cap, 0);
  const testing::TempDir temp;
  const std::string path = (temp.path() / "m.gguf").string();
  std::vector<GgufMetadata> metadata = {{"general.architecture", "gemma4"}};
  for (const GgufMetadata& entry : traits_metadata(traits, 8)) metadata.push_back(entry);
  GgufWriter(path, metadata, {}).commit();
  const GgufFile file = GgufFile::open(path);
  const GgufValue* const cap = file.find("gemma4.final_logit_softcapping");
  ASSERT_NE(cap, nullptr);
  EXPECT_EQ(gguf_traits(file).logit_cap, 0);
}

TEST(Recipe, NemotronStatesBothKindsOfNorms) {
  const Traits traits = config_traits(files::JsonFile::parse(
      R"({"model_type": "nemotron_h", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
          "hybrid_override_pattern": "M-*", "intermediate_size": 96, "vocab_size": 9, "max_position_embeddings": 128,
          "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 16, "n_groups": 2, "conv_kernel": 4})",
      "config.json"));
  for (const char* key : {"nemotron_h.attention.layer_norm_epsilon", "nemotron_h.attention.layer_norm_rms_epsilon"}) {
    const std::vector<GgufMetadata> metadata = traits_metadata(traits, 96);
    EXPECT_NE(std::ranges::find(metadata, key, &GgufMetadata::key), metadata.end()) << key;
  }
}

/// Fields that the small models do not have, through metadata and config and back.
TEST(Recipe, SettingsGoThereAndBack) {
  const char* const configs[] = {
      R"("model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.5})",
      R"("model_type": "qwen2", "rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 31,
         "original_max_position_embeddings": 1024, "attention_factor": 1.7})",
      R"("model_type": "qwen3", "use_sliding_window": true, "sliding_window": 7, "max_window_layers": 2)",
      R"("model_type": "smollm3", "no_rope_layers": [0, 1, 1, 0], "tie_word_embeddings": true)",
      R"("model_type": "gemma2", "query_pre_attn_scalar": 224, "attn_logit_softcapping": null, "sliding_window": 3)",
      R"("model_type": "gemma2", "sliding_window": 3, "layer_types": ["full_attention", "sliding_attention",
         "full_attention", "full_attention"])",
      R"("model_type": "granite", "logits_scaling": 6, "attention_multiplier": 0.0078125, "embedding_multiplier": 12.5)",
      R"("model_type": "phi3", "partial_rotary_factor": 0.75, "sliding_window": 2047)",
      R"("model_type": "mistral", "rms_norm_eps": 3e-7, "rope_theta": 1234567.5)",
      R"("model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 5,
         "norm_topk_prob": true)",
      R"("model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 7,
         "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024,
         "truncate": true})",
      R"("model_type": "deepseek_v2", "kv_lora_rank": 32, "q_lora_rank": null, "qk_nope_head_dim": 16,
         "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2,
         "n_shared_experts": 2, "moe_intermediate_size": 5, "first_k_dense_replace": 1,
         "rope_scaling": {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 1024,
         "mscale": 0.707, "mscale_all_dim": 0.707, "truncate": false})"};
  for (const char* fields : configs) {
    Traits traits = config_traits(files::JsonFile::parse(
        R"({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 8,
            "vocab_size": 9, "max_position_embeddings": 4096, "head_dim": 16, )" +
            std::string(fields) + "}",
        "config.json"));
    traits.tied_output = true;  // which the tensors of a GGUF file say, and this one has none
    ConfigExtras extras;
    extras.dense_feed_forward = 8;
    const std::string text = config_text(traits, extras);
    EXPECT_EQ(config_traits(files::JsonFile::parse(text, "config.json")), traits) << fields << text;

    const testing::TempDir temp;
    const std::string path = (temp.path() / "m.gguf").string();
    std::vector<GgufMetadata> metadata = {{"general.architecture", std::string(gguf_name(traits))},
                                          {"imago.model_type", std::string(name(traits.architecture))}};
    for (const GgufMetadata& entry : traits_metadata(traits, 8)) metadata.push_back(entry);
    GgufWriter(path, metadata, {}).commit();
    Traits between = gguf_traits(GgufFile::open(path));
    between.rope_pairs = traits.rope_pairs;
    between.norm_offset = traits.norm_offset;
    EXPECT_EQ(between, traits) << fields;
  }
}

}  // namespace
}  // namespace imago::models
