#include "convert/target_types.h"

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"

namespace imago::convert {

namespace {

/// What GGUF has in place of a dtype, for messages.
std::string_view nearest_in_gguf(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::float32:
    case DType::float16:
    case DType::bfloat16: break;
    case DType::fp8e4m3:
    case DType::fp8e5m2:
    case DType::int8:
    case DType::uint8: return "q8_0";
    case DType::int64:
    case DType::int32:
    case DType::int16:
    case DType::uint64:
    case DType::uint32:
    case DType::uint16: return "float32 and float16";
    case DType::int4:
    case DType::uint4: return "q4_0, q4_k and iq4_nl";
    case DType::fp4: return "mxfp4 and nvfp4";
    case DType::int2:
    case DType::uint2: return "q2_k and tq2_0";
    case DType::ternary: return "tq2_0 and tq1_0";
    case DType::binary: return "tq1_0";
  }
  return "float16";
}

/// The signed type that holds every number of an unsigned one, as far as there is one.
std::optional<DType> signed_for(DType dtype) {
  if (dtype == DType::uint8) return DType::int16;
  if (dtype == DType::uint16) return DType::int32;
  if (dtype == DType::uint32 || dtype == DType::uint64) return DType::int64;
  return std::nullopt;
}

KeptType keep_in_gguf(const files::StoredTensor& tensor) {
  if (!tensor.format) {
    if (tensor.gguf_type) return {{std::nullopt, false}, ""};
    if (tensor.safetensors_type == SafetensorsType::boolean) return {{DType::int8, false}, "GGUF has no BOOL"};
    if (tensor.safetensors_type == SafetensorsType::f8_e8m0) return {{DType::float32, false}, "GGUF has no F8_E8M0"};
    if (tensor.safetensors_type == SafetensorsType::f4) return {{DType::float16, false}, "GGUF has no F4"};
    throw UnsupportedError(fmt::format("{}: tensor '{}' is {}, which imago can only copy, and GGUF has no such type",
                                       tensor.file, tensor.name, tensor.type));
  }
  const Format format = *tensor.format;
  if (format.is_block() || is_wide(format)) return {{format, false}, ""};
  const DType dtype = format.dtype();
  const std::string reason = fmt::format("GGUF has no {}", format.name());
  const bool narrow = bits(dtype) <= 8;
  if (tensor.scale_group != 0) return {{narrow ? DType::float16 : DType::float32, false}, reason + " with scales"};
  if (info(dtype).kind == NumberKind::signed_integer && bits(dtype) >= 8) return {{format, false}, ""};
  if (const auto wider = signed_for(dtype)) return {{*wider, false}, reason};
  return {{DType::float16, false}, reason};
}

}  // namespace

bool has_scales(Format format) noexcept { return !format.is_block() && is_scaled(format.dtype()); }

bool is_wide(Format format) noexcept { return !format.is_block() && !is_scaled(format.dtype()); }

bool can_hold(FileForm target, Format format) noexcept {
  switch (target) {
    case FileForm::gguf: return is_wide(format) || (format.is_block() && info(format.block()).in_gguf);
    case FileForm::safetensors:
    case FileForm::huggingface: return true;
    case FileForm::checkpoint:
    case FileForm::architecture:
    case FileForm::entity: break;
  }
  return !format.is_block();
}

void require_holdable(FileForm target, Format format) {
  if (can_hold(target, format)) return;
  if (target == FileForm::gguf) {
    const std::string near(format.is_block() ? "q4_0" : nearest_in_gguf(format.dtype()));
    throw UnsupportedError(fmt::format(
        "GGUF cannot hold {}: it has no scales beside tensors; nearest in GGUF: {}; .safetensors, a Hugging "
        "Face folder, .json and .entity can hold {}",
        format.name(), near, format.name()));
  }
  throw UnsupportedError(fmt::format(
      "a network of layers cannot hold {}: its layers have one of the 21 dtypes ('imago dtypes' lists them); .gguf, "
      ".safetensors and Hugging Face folders can hold {}",
      format.name(), format.name()));
}

KeptType keep_type(FileForm target, const files::StoredTensor& tensor) {
  if (target == FileForm::gguf) return keep_in_gguf(tensor);
  if (tensor.format) return {{tensor.format, tensor.scale_group != 0}, ""};
  if (!tensor.safetensors_type) {
    throw UnsupportedError(
        fmt::format("{}: tensor '{}' is {}, which imago can neither decode nor store outside the form it comes in",
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
  if (type.format->is_block() || type.scaled) return std::nullopt;
  switch (type.format->dtype()) {
    case DType::float64: return SafetensorsType::f64;
    case DType::float32: return SafetensorsType::f32;
    case DType::float16: return SafetensorsType::f16;
    case DType::bfloat16: return SafetensorsType::bf16;
    case DType::fp8e4m3: return SafetensorsType::f8_e4m3;
    case DType::fp8e5m2: return SafetensorsType::f8_e5m2;
    case DType::int64: return SafetensorsType::i64;
    case DType::int32: return SafetensorsType::i32;
    case DType::int16: return SafetensorsType::i16;
    case DType::int8: return SafetensorsType::i8;
    case DType::uint64: return SafetensorsType::u64;
    case DType::uint32: return SafetensorsType::u32;
    case DType::uint16: return SafetensorsType::u16;
    case DType::uint8: return SafetensorsType::u8;
    case DType::int4:
    case DType::uint4:
    case DType::fp4:
    case DType::int2:
    case DType::uint2:
    case DType::ternary:
    case DType::binary: break;  // always with scales
  }
  return std::nullopt;
}

}  // namespace imago::convert
