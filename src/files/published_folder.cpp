// Which tensors of a folder make up a published matrix.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <unordered_set>

#include "files/published.h"
#include "imago/error.h"

namespace imago::files {

namespace {

constexpr std::string_view kQuantization = "quantization_config";
constexpr std::array<std::string_view, 7> kMethods = {"fp8",  "fbgemm_fp8", "modelopt", "compressed-tensors",
                                                      "gptq", "awq",        "mxfp4"};

/// What the names of tensors do not say.
struct Stated {
  bool any = false;
  int gptq_bias = 1;  ///< zero points are stored less one, but by the second version of the format
  std::size_t block_rows = 128, block_cols = 128;
};

/// A pair of integers, such as the extents of a block.
void read_block(const std::optional<JsonValue>& value, Stated& stated) {
  if (!value || value->kind() != JsonKind::array) return;
  std::vector<std::size_t> extents;
  for (const JsonMember& member : value->elements("weight_block_size")) {
    extents.push_back(static_cast<std::size_t>(member.value.integer("an extent of a block", 1, 1 << 20)));
  }
  if (extents.size() != 2) value->fail("a block has two extents");
  stated.block_rows = extents[0];
  stated.block_cols = extents[1];
}

Stated read_stated(const JsonValue& config) {
  Stated stated;
  const auto quantization = config.find(kQuantization);
  if (!quantization || !quantization_problem(*quantization).empty()) return stated;
  stated.any = true;
  const auto format = quantization->find("checkpoint_format");
  if (format && format->kind() == JsonKind::string && format->string("checkpoint_format") == "gptq_v2") {
    stated.gptq_bias = 0;
  }
  read_block(quantization->find("weight_block_size"), stated);
  const auto groups = quantization->find("config_groups");
  if (groups && groups->kind() == JsonKind::object) {
    for (const JsonMember& group : groups->members("config_groups")) {
      if (group.value.kind() != JsonKind::object) continue;
      const auto weights = group.value.find("weights");
      if (weights && weights->kind() == JsonKind::object) read_block(weights->find("block_structure"), stated);
    }
  }
  return stated;
}

class Finder {
 public:
  Finder(std::vector<StoredTensor> tensors, const Stated& stated) : tensors_(std::move(tensors)), stated_(stated) {
    for (const StoredTensor& tensor : tensors_) by_name_.emplace(tensor.name, &tensor);
  }

  std::vector<StoredTensor> run() {
    std::vector<StoredTensor> list;
    std::vector<std::optional<StoredTensor>> found(tensors_.size());
    for (std::size_t i = 0; i < tensors_.size(); ++i) found[i] = matrix_of(tensors_[i]);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (found[i]) {
        list.push_back(std::move(*found[i]));
      } else if (!hidden_.contains(&tensors_[i])) {
        list.push_back(tensors_[i]);
      }
    }
    return list;
  }

 private:
  using Layout = PublishedWeights::Layout;
  using Codes = PublishedWeights::Codes;

  const StoredTensor* find(const std::string& name) {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  /// A part of a matrix; from then on it is not a tensor of its own.
  std::optional<StoredTensor> take(const std::string& name) {
    const StoredTensor* tensor = find(name);
    if (tensor == nullptr) return std::nullopt;
    hidden_.insert(tensor);
    return *tensor;
  }
  StoredTensor need(const StoredTensor& weight, const std::string& name) {
    std::optional<StoredTensor> tensor = take(name);
    if (tensor) return std::move(*tensor);
    throw FormatError(weight.file, weight.offset,
                      fmt::format("tensor '{}' is missing: '{}' needs it", name, weight.name));
  }
  [[noreturn]] static void fail(const StoredTensor& tensor, std::string_view problem) {
    throw FormatError(
        tensor.file, tensor.offset,
        fmt::format("tensor '{}' ({} {}) {}", tensor.name, tensor.type, tensor.shape.to_string(), problem));
  }

  static bool is_float8(const StoredTensor& tensor) { return tensor.format == DType::fp8e4m3; }

  std::optional<StoredTensor> matrix_of(const StoredTensor& tensor) {
    const auto stem = [&](std::string_view end) { return tensor.name.substr(0, tensor.name.size() - end.size()); };
    if (tensor.name.ends_with(".qweight")) return words(tensor, stem(".qweight"));
    if (tensor.name.ends_with(".weight_packed")) return packed(tensor, stem(".weight_packed"));
    if (!tensor.name.ends_with(".weight") || tensor.shape.rank() != 2) return std::nullopt;
    const std::string name = stem(".weight");
    const bool inverse = find(name + ".weight_scale_inv") != nullptr;
    if (!inverse && find(name + ".weight_scale") == nullptr) return std::nullopt;
    PublishedWeights::Parts parts{.name = tensor.name,
                                  .rows = tensor.shape.extents()[0],
                                  .cols = tensor.shape.last(),
                                  .weight = tensor,
                                  .scale = need(tensor, name + (inverse ? ".weight_scale_inv" : ".weight_scale")),
                                  .block_rows = stated_.block_rows,
                                  .block_cols = stated_.block_cols};
    std::string_view type = "fp8";
    if (is_float8(tensor)) {
      parts.codes = Codes::fp8;
    } else if (tensor.format == DType::int8) {
      parts.is_signed = true;
      parts.zeros = take(name + ".weight_zero_point");
      type = "int8";
    } else if (tensor.format == DType::uint8) {
      parts.layout = Layout::pairs;
      parts.codes = Codes::fp4;
      parts.cols *= 2;
      parts.multiplier = need(tensor, name + ".weight_scale_2");
      type = "nvfp4";
    } else {
      fail(tensor, "has scales, but its type is not one that is published with scales");
    }
    take(name + ".input_scale");
    take(name + ".input_zero_point");
    return made(std::move(parts), tensor, type);
  }

  /// GPTQ or AWQ: the shape tells them apart.
  StoredTensor words(const StoredTensor& tensor, const std::string& name) {
    if (tensor.shape.rank() != 2 || tensor.format != DType::int32) fail(tensor, "must be a matrix of I32");
    PublishedWeights::Parts parts{.name = name + ".weight", .weight = tensor, .scale = need(tensor, name + ".scales")};
    parts.zeros = need(tensor, name + ".qzeros");
    if (parts.scale.shape.rank() != 2) fail(parts.scale, "must have a row for each group");
    parts.rows = parts.scale.shape.last();
    const bool awq = tensor.shape.last() != parts.rows;
    parts.layout = awq ? Layout::awq_words : Layout::column_words;
    const std::size_t words = parts.zeros->shape.rank() == 2 ? parts.zeros->shape.last() : 0;
    parts.bits = words * 4 == parts.rows ? 8 : 4;
    if (awq && (parts.bits != 4 || words != tensor.shape.last()))
      fail(tensor, "is neither of GPTQ nor of AWQ with 4 bits");
    if (parts.bits == 4 && words != (parts.rows + 7) / 8) {
      fail(*parts.zeros,
           fmt::format("holds no zero points of 4 or 8 bits for {} rows: other widths are not supported", parts.rows));
    }
    parts.cols =
        awq ? tensor.shape.extents()[0] : tensor.shape.extents()[0] * (32 / static_cast<std::size_t>(parts.bits));
    parts.groups = take(name + ".g_idx");
    if (parts.groups && parts.groups->shape.elements() == 0) parts.groups.reset();
    if (!awq) parts.zero_bias = stated_.gptq_bias;
    const std::string type = std::string(awq ? "awq int" : "gptq int") + std::to_string(parts.bits);
    return made(std::move(parts), tensor, type);
  }

  /// compressed-tensors.
  StoredTensor packed(const StoredTensor& tensor, const std::string& name) {
    if (tensor.shape.rank() != 2) fail(tensor, "must be a matrix");
    PublishedWeights::Parts parts{.name = name + ".weight",
                                  .rows = tensor.shape.extents()[0],
                                  .cols = 2 * tensor.shape.last(),
                                  .weight = tensor,
                                  .scale = need(tensor, name + ".weight_scale")};
    std::string type;
    if (tensor.format == DType::uint8) {
      parts.layout = Layout::pairs;
      parts.codes = Codes::fp4;
      if (is_float8(parts.scale)) {
        parts.divisor = need(tensor, name + ".weight_global_scale");
        type = "nvfp4";
      } else {
        // Bytes are exponents.
        if (parts.scale.format != DType::uint8 && parts.scale.safetensors_type != SafetensorsType::f8_e8m0) {
          fail(parts.scale, "must be exponents in bytes");
        }
        parts.scale.format.reset();
        parts.scale.safetensors_type = SafetensorsType::f8_e8m0;
        type = "mxfp4";
      }
    } else if (tensor.format == DType::int32) {
      parts.layout = Layout::row_words;
      const StoredTensor shape = need(tensor, name + ".weight_shape");
      std::array<float, 2> extents{};
      if (shape.shape.elements() != 2) fail(shape, "must be two integers");
      decode_tensor(shape, 0, extents);
      const float most = 16 * static_cast<float>(tensor.shape.last());
      if (!(extents[1] >= 1 && extents[1] <= most) || extents[0] != static_cast<float>(parts.rows)) {
        fail(shape, "is not that of the packed weights");
      }
      parts.cols = static_cast<std::size_t>(extents[1]);
      parts.bits = (parts.cols + 7) / 8 == tensor.shape.last() ? 4 : 8;
      parts.zeros = take(name + ".weight_zero_point");
      if (const auto groups = take(name + ".weight_g_idx"); groups && groups->shape.elements() > 1) {
        fail(*groups, "gives columns to groups in another order, which is not supported");
      }
      type = "int" + std::to_string(parts.bits);
    } else {
      fail(tensor, "must be I32 or U8");
    }
    take(name + ".input_global_scale");
    take(name + ".input_scale");
    return made(std::move(parts), tensor, type);
  }

  StoredTensor made(PublishedWeights::Parts parts, const StoredTensor& tensor, std::string_view type) {
    StoredTensor matrix = tensor;
    matrix.name = parts.name;
    matrix.type = type;
    matrix.format.reset();
    matrix.safetensors_type.reset();
    matrix.shape = Shape{parts.rows, parts.cols};
    matrix.published = std::make_shared<const PublishedWeights>(std::move(parts));
    return matrix;
  }

  std::vector<StoredTensor> tensors_;
  const Stated& stated_;
  std::unordered_map<std::string_view, const StoredTensor*> by_name_;
  std::unordered_set<const StoredTensor*> hidden_;
};

}  // namespace

std::string quantization_problem(const JsonValue& quantization) {
  std::string method = "an unnamed method";
  if (quantization.kind() == JsonKind::object) {
    const auto stated = quantization.find("quant_method");
    if (stated && stated->kind() == JsonKind::string) method = stated->string("quant_method");
  }
  if (std::ranges::find(kMethods, method) != kMethods.end()) return {};
  std::string problem = "the weights are quantized by '" + method + "', which is not supported; known are ";
  for (const std::string_view known : kMethods) problem.append(known).append(", ");
  return problem + "and floats: take the original model and let imago quantize it";
}

std::string without_quantization(const JsonFile& config) {
  const std::string_view text = config.text();
  std::size_t before = text.find('{') + 1;  // the end of the member before, or of the brace
  bool first = true;
  for (const JsonMember& member : config.root().members("config.json")) {
    const std::size_t end = static_cast<std::size_t>(member.value.offset()) + member.value.source().size();
    if (member.key != kQuantization) {
      before = end;
      first = false;
      continue;
    }
    // Without the comma in front of it or, of the first member, behind it.
    const std::size_t comma = text.find_first_not_of(" \t\r\n", end);
    const std::size_t rest = first && comma != std::string_view::npos && text[comma] == ',' ? comma + 1 : end;
    return std::string(text.substr(0, before)) + std::string(text.substr(rest));
  }
  return std::string(text);
}

std::vector<StoredTensor> find_published(std::vector<StoredTensor> tensors, const JsonValue& config) {
  const Stated stated = read_stated(config);
  if (!stated.any) return tensors;
  return Finder(std::move(tensors), stated).run();
}

}  // namespace imago::files
