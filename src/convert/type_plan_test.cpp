#include "convert/type_plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <list>

#include "imago/error.h"

namespace imago::convert {
namespace {

using models::TensorUse;
using enum BlockFormat;

/// A recipe of tensors without values: enough for planning.
struct Recipe {
  explicit Recipe(FileForm target, std::size_t blocks = 16) : blocks_(blocks) { recipe.target = target; }

  Recipe& add(const std::string& name, Shape shape, TensorUse use = TensorUse::matrix, Format format = DType::float16,
              std::size_t block = 0) {
    files::StoredTensor& stored = sources_.emplace_back();
    stored.name = name;
    stored.type = format.name();
    stored.format = format;
    stored.shape = shape;
    stored.file = "model";
    models::TensorRecipe& made = recipe.tensors.emplace_back();
    made.name = name;
    made.shape = shape;
    made.parts = {{&stored, 0, stored.rows()}};
    made.use = use;
    made.block = block;
    made.blocks = blocks_;
    return *this;
  }

  models::ModelRecipe recipe;

 private:
  std::size_t blocks_;
  std::list<files::StoredTensor> sources_;  // whose addresses stay
};

ConvertOptions to(Format format) {
  ConvertOptions options;
  options.type = format;
  return options;
}

std::string type_of(const Recipe& recipe, const ConvertOptions& options, std::size_t index = 0) {
  return std::string(plan_types(recipe.recipe, options).at(index).type.format->name());
}

TEST(TypePlan, WithoutATypeEverythingKeepsItsOwn) {
  Recipe recipe(FileForm::gguf);
  recipe.add("a", {64, 256})
      .add("b", {64}, TensorUse::vector, DType::bfloat16)
      .add("c", {4, 32}, TensorUse::matrix, q4_0);
  const auto plan = plan_types(recipe.recipe, {});
  EXPECT_EQ(plan[0].type.format, Format(DType::float16));
  EXPECT_EQ(plan[1].type.format, Format(DType::bfloat16));
  EXPECT_EQ(plan[2].type.format, Format(q4_0));
  for (const PlannedTensor& planned : plan) EXPECT_TRUE(planned.copied) << planned.recipe->name;
  EXPECT_EQ(plan[0].code_bytes, 64u * 256 * 2);
}

TEST(TypePlan, VectorsRoutersAndSmallMatricesStayWide) {
  Recipe recipe(FileForm::gguf);
  recipe.add("norm", {256}, TensorUse::vector).add("router", {8, 256}, TensorUse::router).add("small", {4, 256});
  recipe.add("matrix", {64, 256});
  EXPECT_EQ(type_of(recipe, to(q4_k), 0), "float32") << "runners of GGUF want vectors so";
  EXPECT_EQ(type_of(recipe, to(q4_k), 1), "float32");
  EXPECT_EQ(type_of(recipe, to(q4_k), 2), "float16");
  EXPECT_EQ(type_of(recipe, to(q4_k), 3), "q4_k");
  Recipe folder(FileForm::huggingface);
  folder.add("norm", {256}, TensorUse::vector, DType::bfloat16);
  EXPECT_EQ(type_of(folder, to(q4_k)), "bfloat16");
  ConvertOptions pure = to(q4_k);
  pure.pure = true;
  EXPECT_EQ(type_of(recipe, pure, 1), "q4_k");
  EXPECT_EQ(type_of(recipe, pure, 2), "q4_k");
  EXPECT_EQ(type_of(recipe, pure, 0), "float32");
}

TEST(TypePlan, TheMixOfADecoderFollowsItsTable) {
  Recipe recipe(FileForm::gguf, 16);
  recipe.add("token_embd", {512, 256}, TensorUse::embedding).add("output", {512, 256}, TensorUse::output);
  for (std::size_t block = 0; block < 16; ++block) {
    recipe.add("v" + std::to_string(block), {64, 256}, TensorUse::attention_value, DType::float16, block);
    recipe.add("d" + std::to_string(block), {64, 256}, TensorUse::down, DType::float16, block);
  }
  EXPECT_EQ(type_of(recipe, to(q4_k), 0), "q4_k");
  EXPECT_EQ(type_of(recipe, to(q4_k), 1), "q6_k");
  EXPECT_EQ(type_of(recipe, to(q8_0), 1), "q8_0");
  EXPECT_EQ(type_of(recipe, to(q4_0), 1), "q6_k");
  // The blocks of 16 that llama-quantize raises in Q4_K_M: 0 1 4 7 10 13 14 15.
  std::string raised;
  for (std::size_t block = 0; block < 16; ++block) {
    EXPECT_EQ(type_of(recipe, to(q4_k), 2 + 2 * block), type_of(recipe, to(q4_k), 3 + 2 * block));
    raised += type_of(recipe, to(q4_k), 2 + 2 * block) == "q6_k" ? '1' : '0';
    EXPECT_EQ(type_of(recipe, to(q2_k), 3 + 2 * block), "q3_k");
  }
  EXPECT_EQ(raised, "1100100100100111");
  ConvertOptions pure = to(q4_k);
  pure.pure = true;
  for (std::size_t i = 0; i < recipe.recipe.tensors.size(); ++i) EXPECT_EQ(type_of(recipe, pure, i), "q4_k");

  Recipe tied(FileForm::gguf, 16);
  tied.add("token_embd", {512, 256}, TensorUse::embedding);
  EXPECT_EQ(type_of(tied, to(q4_k)), "q6_k") << "it gives the logits too";
  Recipe folder(FileForm::huggingface, 16);
  folder.add("embed", {512, 256}, TensorUse::embedding, DType::bfloat16);
  EXPECT_EQ(type_of(folder, to(DType::int8)), "bfloat16");
}

TEST(TypePlan, RowsThatFitNoBlockFallBack) {
  const std::pair<BlockFormat, const char*> wanted[] = {
      {q2_k, "q4_0"},  {q3_k, "q4_0"},  {q4_k, "q5_0"},     {q5_k, "q5_1"},   {q6_k, "q8_0"},
      {tq1_0, "q4_0"}, {tq2_0, "q4_0"}, {iq4_xs, "iq4_nl"}, {nvfp4, "mxfp4"}, {q4_0, "q4_0"}};
  for (const auto& [asked, got] : wanted) {
    Recipe recipe(FileForm::gguf);
    recipe.add("a", {64, 96}).add("b", {64, 33});
    EXPECT_EQ(type_of(recipe, to(asked), 0), got);
    EXPECT_EQ(type_of(recipe, to(asked), 1), "float16") << "keeps its wide type";
  }
}

TEST(TypePlan, InABagAndWithPureRowsThatFitNoBlockKeepTheirType) {
  for (const std::size_t blocks : {0u, 16u}) {
    Recipe recipe(FileForm::gguf, blocks);
    recipe.add("a", {64, 96}).add("b", {64, 33}, TensorUse::matrix, DType::bfloat16);
    recipe.add("c", {64, 96}, TensorUse::matrix, q4_0).add("d", {64, 512});
    for (const BlockFormat asked : {q2_k, q4_k, q6_k, tq1_0, iq4_xs}) {
      ConvertOptions options = to(asked);
      options.pure = blocks != 0;
      const auto plan = plan_types(recipe.recipe, options);
      EXPECT_EQ(plan[0].type.format, Format(DType::float16));
      EXPECT_EQ(plan[1].type.format, Format(DType::bfloat16));
      EXPECT_EQ(plan[2].type.format, Format(q4_0)) << "a quantized type of its own is kept too, as it is";
      EXPECT_TRUE(plan[0].copied && plan[1].copied && plan[2].copied);
      EXPECT_EQ(plan[0].reason, fmt::format("rows of 96 fit no block of {}", name(asked)));
      EXPECT_EQ(plan[3].type.format, Format(asked));
      options.tensor_types = {{"a", q5_k}};
      EXPECT_EQ(type_of(recipe, options, 0), "float16") << "patterns do not mix types either";
    }
  }
}

TEST(TypePlan, InABagEveryMatrixThatFitsTakesTheType) {
  Recipe recipe(FileForm::safetensors, 0);
  recipe.add("a", {2, 32}, TensorUse::embedding)
      .add("b", {3, 4, 64}, TensorUse::down)
      .add("c", {512}, TensorUse::vector);
  recipe.add("ids", {4, 32}, TensorUse::matrix, DType::int64);
  EXPECT_EQ(type_of(recipe, to(q4_0), 0), "q4_0");
  EXPECT_EQ(type_of(recipe, to(q4_0), 1), "q4_0");
  EXPECT_EQ(type_of(recipe, to(q4_0), 2), "float16");
  EXPECT_EQ(type_of(recipe, to(q4_0), 3), "int64") << "numbers, no weights";
}

TEST(TypePlan, PatternsComeFirstAndTheFirstDecides) {
  Recipe recipe(FileForm::gguf);
  recipe.add("blk.0.ffn_down.weight", {64, 256}, TensorUse::down).add("blk.0.norm", {256}, TensorUse::vector);
  ConvertOptions options = to(q4_k);
  options.tensor_types = {{"ffn_(down|up)", q8_0}, {"ffn", q2_k}, {"norm$", DType::float16}};
  const auto plan = plan_types(recipe.recipe, options);
  EXPECT_EQ(plan[0].type.format, Format(q8_0));
  EXPECT_EQ(plan[0].reason, "asked for by 'ffn_(down|up)'");
  EXPECT_EQ(plan[1].type.format, Format(DType::float16));
  options.tensor_types = {{"(", q8_0}};
  EXPECT_THROW(plan_types(recipe.recipe, options), UsageError);
}

TEST(TypePlan, GgufRefusesTypesWithScalesAndSaysWhatIsNear) {
  for (const DTypeInfo& dtype : kDTypes) {
    Recipe recipe(FileForm::gguf, 0);
    recipe.add("a", {64, 256});
    if (!is_scaled(dtype.id)) {
      EXPECT_EQ(type_of(recipe, to(dtype.id)), dtype.name);
      continue;
    }
    try {
      plan_types(recipe.recipe, to(dtype.id));
      ADD_FAILURE() << dtype.name;
    } catch (const UnsupportedError& error) {
      EXPECT_NE(std::string(error.what()).find("nearest in GGUF: "), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(".safetensors"), std::string::npos) << error.what();
    }
  }
}

TEST(TypePlan, WhatGgufCannotHoldIsKeptInWhatCan) {
  const std::pair<DType, const char*> wanted[] = {
      {DType::uint8, "int16"}, {DType::uint16, "int32"},    {DType::uint32, "int64"},   {DType::uint64, "int64"},
      {DType::int8, "int8"},   {DType::fp8e4m3, "float16"}, {DType::fp8e5m2, "float16"}};
  for (const auto& [from, got] : wanted) {
    Recipe recipe(FileForm::gguf, 0);
    recipe.add("a", {64, 256}, TensorUse::matrix, from);
    EXPECT_EQ(type_of(recipe, {}), got) << name(from);
  }
}

TEST(TypePlan, ScalesSitWhereTheyAreAskedFor) {
  Recipe recipe(FileForm::safetensors, 0);
  recipe.add("a", {64, 96}).add("b", {64, 100});
  ConvertOptions options = to(DType::int4);
  EXPECT_EQ(plan_types(recipe.recipe, options)[0].scales, (ScaleLayout{1, 64 * 96}));
  options.granularity = Granularity::row;
  EXPECT_EQ(plan_types(recipe.recipe, options)[0].scales, (ScaleLayout{64, 96}));
  options.granularity = Granularity::group;
  EXPECT_EQ(plan_types(recipe.recipe, options)[0].scales, (ScaleLayout{64 * 3, 32}));
  EXPECT_EQ(plan_types(recipe.recipe, options)[1].scales, (ScaleLayout{64, 100})) << "100 is not a multiple of 32";
  EXPECT_EQ(plan_types(recipe.recipe, options)[0].bytes(), 64u * 96 / 2 + 64 * 3 * 4);
}

TEST(TypePlan, OptionsWithoutMeaningAreRefused) {
  Recipe recipe(FileForm::safetensors, 0);
  recipe.add("a", {64, 96});
  const auto refused = [&](ConvertOptions options) { EXPECT_THROW(plan_types(recipe.recipe, options), UsageError); };
  ConvertOptions options = to(q4_0);
  options.calibrator = Calibrator::mse;
  refused(options);
  options = to(DType::int8);
  options.calibrator = Calibrator::absmean;
  refused(options);
  options = to(DType::int8);
  options.granularity = Granularity::group;
  options.group = 33;
  refused(options);
  options = {};
  options.granularity = Granularity::row;
  refused(options);
  options = {};
  options.pure = true;
  refused(options);
}

TEST(Mixes, EveryWideAndBlockTypeOfGgufHasANumber) {
  for (const BlockFormatInfo& row : kBlockFormats) {
    EXPECT_EQ(gguf_file_type(row.id, true).has_value(), row.in_gguf()) << row.name;
  }
  EXPECT_EQ(gguf_file_type(q4_k, true), 15u);
  EXPECT_EQ(gguf_file_type(q4_k, false), 14u);
  EXPECT_EQ(gguf_file_type(q8_0, false), 7u);
  EXPECT_EQ(gguf_file_type(DType::float16, false), 1u);
}

}  // namespace
}  // namespace imago::convert
