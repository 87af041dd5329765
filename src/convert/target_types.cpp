#include "convert/target_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "files/safetensors.h"
#include "imago/error.h"

namespace imago::convert {

namespace {

using enum BlockFormat;
using models::TensorUse;

// ---- mixes

enum class Blocks : std::uint8_t { all, half };

/// Every error of the output reaches the logits, so it gets at least six bits. Only one row of the embedding is read
/// per token, so it can afford four or more. Attention values and the down projection write straight into the residual
/// stream: they get more bits in all blocks of coarse types, and in about half the blocks of finer ones.
struct Mix {
  Format type, output, embedding, value, down;
  Blocks raised;
};
constexpr Mix kMixes[] = {
    {q2_k, q6_k, q4_k, q4_k, q3_k, Blocks::all},      {q3_k, q6_k, q4_k, q5_k, q4_k, Blocks::all},
    {q4_k, q6_k, q4_k, q6_k, q6_k, Blocks::half},     {q5_k, q6_k, q5_k, q6_k, q6_k, Blocks::half},
    {iq4_nl, q6_k, iq4_nl, q5_k, q5_k, Blocks::half}, {iq4_xs, q6_k, iq4_xs, q5_k, q5_k, Blocks::half},
    {tq1_0, q6_k, q4_k, tq1_0, tq1_0, Blocks::all},   {tq2_0, q6_k, q4_k, tq2_0, tq2_0, Blocks::all},
    {mxfp4, q8_0, q8_0, mxfp4, mxfp4, Blocks::all},   {nvfp4, q8_0, q8_0, nvfp4, nvfp4, Blocks::all},
};

/// The first and last eighth of the blocks, where errors do most harm, and every third in between.
bool gets_more_bits(std::size_t block, std::size_t blocks) noexcept {
  const std::size_t eighth = blocks / 8;
  return block < eighth || block >= 7 * blocks / 8 || (block - eighth) % 3 == 2;
}

// ---- what files can hold

/// What GGUF has instead of a dtype with scales, for messages.
std::string_view nearest_in_gguf(DType dtype) {
  if (dtype == DType::fp4) return "mxfp4 and nvfp4";
  if (dtype == DType::ternary) return "tq2_0 and tq1_0";
  switch (bits(dtype)) {
    case 1: return "tq1_0";
    case 2: return "q2_k and tq2_0";
    case 4: return "q4_0, q4_k and iq4_nl";
    case 8: return "q8_0";
    default: return "float32 and float16";
  }
}

/// The signed type that holds the numbers of an unsigned one. No type holds all of uint64: RecipeReader::widen checks.
std::optional<DType> signed_for(DType dtype) {
  if (dtype == DType::uint8) return DType::int16;
  if (dtype == DType::uint16) return DType::int32;
  if (dtype == DType::uint32 || dtype == DType::uint64) return DType::int64;
  return std::nullopt;
}

TypeChoice keep_in_gguf(const files::StoredTensor& tensor) {
  if (!tensor.format) {
    if (tensor.gguf_type) return {{std::nullopt, false}, ""};
    if (tensor.safetensors_type == SafetensorsType::boolean) return {{DType::int8, false}, "GGUF has no BOOL"};
    if (tensor.safetensors_type == SafetensorsType::f8_e8m0) return {{DType::float32, false}, "GGUF has no F8_E8M0"};
    return {{DType::float16, false}, "GGUF has no F4"};
  }
  const Format format = *tensor.format;
  if (!format.has_scales()) return {{format, false}, ""};
  const DType dtype = format.dtype();
  const std::string reason = fmt::format("GGUF has no {}", format.name());
  const bool narrow = bits(dtype) <= 8;
  if (tensor.scale_group != 0) return {{narrow ? DType::float16 : DType::float32, false}, reason + " with scales"};
  if (info(dtype).kind == NumberKind::signed_integer && bits(dtype) >= 8) return {{format, false}, ""};
  if (const auto wider = signed_for(dtype)) return {{*wider, false}, reason};
  return {{DType::float16, false}, reason};
}

}  // namespace

bool is_network(FileForm format) noexcept {
  return format == FileForm::checkpoint || format == FileForm::architecture || format == FileForm::entity;
}

bool can_hold(FileForm target, Format format) noexcept { return target != FileForm::gguf || format.in_gguf(); }

void require_holdable(FileForm target, Format format) {
  if (can_hold(target, format)) return;
  const std::string_view near = format.has_scales() ? nearest_in_gguf(format.dtype()) : "q4_0";
  throw UnsupportedError(
      fmt::format("GGUF cannot hold {}: it has no scales for tensors; nearest in GGUF: {}; .safetensors, a Hugging "
                  "Face folder, .json and .entity can hold {}",
                  format.name(), near, format.name()));
}

TypeChoice keep_type(FileForm target, const files::StoredTensor& tensor) {
  if (target == FileForm::gguf) return keep_in_gguf(tensor);
  if (tensor.format) return {{tensor.format, tensor.scale_group != 0}, ""};
  if (!tensor.safetensors_type) {
    throw UnsupportedError(
        fmt::format("{}: tensor '{}' is {}, which imago can neither decode nor store in another file format",
                    tensor.file, tensor.name, tensor.type));
  }
  return {{std::nullopt, false}, ""};
}

std::string type_name(const files::StoredTensor& tensor) {
  return tensor.format ? std::string(tensor.format->name()) : tensor.type;
}

std::string type_name(const TargetType& type, const files::StoredTensor& source) {
  return type.format ? std::string(type.format->name()) : source.type;
}

std::optional<SafetensorsType> plain_safetensors_type(const TargetType& type, const files::StoredTensor& source) {
  if (!type.format) return source.safetensors_type;
  return type.scaled ? std::nullopt : files::safetensors_type(*type.format);
}

std::optional<Format> mixed_type(Format format, const models::TensorRecipe& tensor, bool tied) {
  const bool output = tensor.use == TensorUse::output || (tensor.use == TensorUse::embedding && tied);
  // Dtypes have at best one scale per row, and the rows of rare tokens vary widely.
  if (format.has_scales() && (output || tensor.use == TensorUse::embedding)) return std::nullopt;
  const auto mix = std::ranges::find(kMixes, format, &Mix::type);
  if (mix == std::end(kMixes)) return output && format.bits() < Format(q6_k).bits() ? q6_k : format;
  if (output) return mix->output;
  if (tensor.use == TensorUse::embedding) return mix->embedding;
  if (mix->raised == Blocks::half && !gets_more_bits(tensor.block, tensor.blocks)) return format;
  if (tensor.use == TensorUse::attention_value) return mix->value;
  if (tensor.use == TensorUse::down) return mix->down;
  return format;
}

std::optional<std::uint32_t> gguf_file_type(Format format, bool mixed) noexcept {
  if (format == DType::float32) return 0;
  if (format == DType::float16) return 1;
  if (format == DType::bfloat16) return 32;
  if (format.is_wide() || !format.in_gguf()) return std::nullopt;
  return static_cast<std::uint32_t>(info(format.block()).file_types[mixed ? 1 : 0]);
}

}  // namespace imago::convert
