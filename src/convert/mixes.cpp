#include "convert/mixes.h"

#include <algorithm>
#include <iterator>

#include "convert/target_types.h"

namespace imago::convert {

namespace {

using enum BlockFormat;
using models::TensorUse;

enum class Blocks : std::uint8_t { all, half };

/// The logits feel every error of the output, so it gets six bits or more; the embedding costs nothing to read, and
/// gets four at least. Values of the attention and the down projection write straight into the residual stream: they
/// get more in all blocks of coarse types and in about half the blocks of finer ones.
struct Mix {
  BlockFormat type, output, embedding, value, down;
  Blocks raised;
};
constexpr Mix kMixes[] = {
    {q2_k, q6_k, q4_k, q4_k, q3_k, Blocks::all},      {q3_k, q6_k, q4_k, q5_k, q4_k, Blocks::all},
    {q4_k, q6_k, q4_k, q6_k, q6_k, Blocks::half},     {q5_k, q6_k, q5_k, q6_k, q6_k, Blocks::half},
    {q4_0, q6_k, q4_0, q4_0, q4_0, Blocks::all},      {q4_1, q6_k, q4_1, q4_1, q4_1, Blocks::all},
    {q5_0, q6_k, q5_0, q5_0, q5_0, Blocks::all},      {q5_1, q6_k, q5_1, q5_1, q5_1, Blocks::all},
    {iq4_nl, q6_k, iq4_nl, q5_k, q5_k, Blocks::half}, {iq4_xs, q6_k, iq4_xs, q5_k, q5_k, Blocks::half},
    {tq1_0, q6_k, q4_k, tq1_0, tq1_0, Blocks::all},   {tq2_0, q6_k, q4_k, tq2_0, tq2_0, Blocks::all},
    {mxfp4, q8_0, q8_0, mxfp4, mxfp4, Blocks::all},   {nvfp4, q8_0, q8_0, nvfp4, nvfp4, Blocks::all},
};

/// The first and last eighth of the blocks, where errors do most harm, and every third between them.
bool gets_more_bits(std::size_t block, std::size_t blocks) noexcept {
  const std::size_t eighth = blocks / 8;
  return block < eighth || block >= 7 * blocks / 8 || (block - eighth) % 3 == 2;
}

struct Fallback {
  BlockFormat type, smaller_block;
};
/// Never fewer bits than were asked for.
constexpr Fallback kFallbacks[] = {
    {q2_k, q4_0},  {q3_k, q4_0},  {q4_k, q5_0},     {q5_k, q5_1},   {q6_k, q8_0},
    {tq1_0, q4_0}, {tq2_0, q4_0}, {iq4_xs, iq4_nl}, {nvfp4, mxfp4},
};

struct FileType {
  Format format;
  std::uint32_t plain, mixed;
};
/// The numbers of llama.cpp; for k-quants "small" stands for no mix and "medium" for the usual one.
constexpr FileType kFileTypes[] = {
    {DType::float32, 0, 0}, {DType::float16, 1, 1}, {DType::bfloat16, 32, 32},
    {q4_0, 2, 2},           {q4_1, 3, 3},           {q5_0, 8, 8},
    {q5_1, 9, 9},           {q8_0, 7, 7},           {q2_k, 21, 10},
    {q3_k, 11, 12},         {q4_k, 14, 15},         {q5_k, 16, 17},
    {q6_k, 18, 18},         {iq4_nl, 25, 25},       {iq4_xs, 30, 30},
    {tq1_0, 36, 36},        {tq2_0, 37, 37},        {mxfp4, 38, 38},
    {nvfp4, 39, 39},
};

}  // namespace

std::optional<Format> mixed_type(Format format, const models::TensorRecipe& tensor, bool tied) {
  const bool output = tensor.use == TensorUse::output || (tensor.use == TensorUse::embedding && tied);
  // Checkpoints in dtypes with scales leave both as they are: there is one scale for a row at best, and rows of rare
  // tokens differ widely.
  if (has_scales(format) && (output || tensor.use == TensorUse::embedding)) return std::nullopt;
  if (!format.is_block()) return format;
  const auto mix = std::ranges::find(kMixes, format.block(), &Mix::type);
  if (mix == std::end(kMixes)) return format;
  if (output) return mix->output;
  if (tensor.use == TensorUse::embedding) return mix->embedding;
  if (mix->raised == Blocks::half && !gets_more_bits(tensor.block, tensor.blocks)) return format;
  if (tensor.use == TensorUse::attention_value) return mix->value;
  if (tensor.use == TensorUse::down) return mix->down;
  return format;
}

std::optional<Format> fitting_type(Format format, std::size_t cols) noexcept {
  const auto fits = [&](Format type) { return cols % static_cast<std::size_t>(type.block_values()) == 0; };
  if (fits(format)) return format;
  const auto found = std::ranges::find(kFallbacks, format.block(), &Fallback::type);
  if (found != std::end(kFallbacks) && fits(found->smaller_block)) return found->smaller_block;
  return std::nullopt;
}

std::optional<std::uint32_t> gguf_file_type(Format format, bool mixed) noexcept {
  const auto found = std::ranges::find(kFileTypes, format, &FileType::format);
  if (found == std::end(kFileTypes)) return std::nullopt;
  return mixed ? found->mixed : found->plain;
}

}  // namespace imago::convert
