#include "files/packed_safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include "files/json.h"
#include "files/json_writer.h"
#include "files/safetensors.h"
#include "imago/error.h"
#include "quant/scheme.h"

namespace imago::files {

namespace {

constexpr std::array<std::string_view, 3> kGranularities = {"tensor", "row", "group"};

std::size_t row_count(const Shape& shape) {
  return shape.rank() < 2 ? 1 : shape.elements() / std::max<std::size_t>(shape.last(), 1);
}

/// Where its scales sit. Throws UsageError for what has no meaning, ShapeError if the rows do not fit.
ScaleLayout layout_of(const PackedTensor& tensor) {
  if (tensor.format.is_wide()) {
    throw UsageError(
        fmt::format("{} is not a packed type: safetensors has a type of its own for it", tensor.format.name()));
  }
  Scheme scheme(tensor.format);
  scheme.granularity = tensor.granularity;
  scheme.group = tensor.group;
  if (tensor.zero_points && !has_zero_points(tensor.format)) {
    throw UsageError(fmt::format("{} has no zero points", tensor.format.name()));
  }
  return scale_layout(checked_scheme(scheme), row_count(tensor.shape), tensor.shape.last());
}

// ---- reading an entry

Format read_type(const JsonValue& entry, std::string_view name) {
  const JsonValue value = entry.require("type", fmt::format("tensor '{}'", name));
  const std::string text = value.string("type");
  const auto format = std::ranges::find(kFormats, text, &Format::name);
  if (format == kFormats.end()) {
    value.fail(fmt::format("tensor '{}' is of type '{}', which is not known", name, text));
  }
  return *format;
}

Granularity read_granularity(const JsonValue& entry, const PackedTensor& tensor) {
  const std::optional<JsonValue> value = entry.find("granularity");
  if (!tensor.format.has_scales()) {
    if (value) value->fail(fmt::format("tensor '{}' of {} has no granularity", tensor.name, tensor.format.name()));
    return Granularity::tensor;
  }
  if (!value) entry.fail(fmt::format("tensor '{}' of {} has no granularity", tensor.name, tensor.format.name()));
  const std::string text = value->string("granularity");
  const auto found = std::ranges::find(kGranularities, text);
  if (found == kGranularities.end()) {
    value->fail(
        fmt::format("the granularity of tensor '{}' is '{}': it must be tensor, row or group", tensor.name, text));
  }
  return static_cast<Granularity>(found - kGranularities.begin());
}

PackedTensor read_entry(const std::string& name, const JsonValue& entry) {
  if (entry.kind() != JsonKind::object) entry.fail(fmt::format("tensor '{}' must be an object", name));
  PackedTensor tensor;
  tensor.name = name;
  tensor.format = read_type(entry, name);
  tensor.shape = read_safetensors_shape(entry.require("shape", fmt::format("tensor '{}'", name)));
  tensor.granularity = read_granularity(entry, tensor);
  if (const std::optional<JsonValue> group = entry.find("group")) {
    if (tensor.granularity != Granularity::group) {
      group->fail(fmt::format("tensor '{}' has a group, but its scales are not one per group", name));
    }
    tensor.group = static_cast<int>(group->integer("group", 1, 1 << 20));
  }
  if (const std::optional<JsonValue> zeros = entry.find("zero_points")) {
    tensor.zero_points = zeros->boolean("zero_points");
  }
  try {
    layout_of(tensor);
  } catch (const Error& error) {
    entry.fail(fmt::format("tensor '{}': {}", name, error.what()));
  }
  return tensor;
}

// ---- a file with such entries

/// Makes `stored`, a tensor of plain bytes, what `packed` says.
void unwrap(StoredTensor& stored, const PackedTensor& packed) {
  const auto fail = [&](const std::string& problem) {
    throw FormatError(stored.file, stored.offset, fmt::format("tensor '{}' {}", stored.name, problem));
  };
  const bool gguf = stored.gguf_type.has_value();
  if (stored.format != (gguf ? DType::int8 : DType::uint8)) {
    fail(fmt::format("is packed {}, so it must be {}, not {}", packed.format.name(), gguf ? "I8" : "U8", stored.type));
  }
  std::size_t wanted = 0;
  try {
    wanted = packed_bytes(packed.format, packed.shape.elements());
  } catch (const ShapeError& error) {
    fail(fmt::format("of {} {}: {}", packed.format.name(), packed.shape.to_string(), error.what()));
  }
  if (wanted != stored.bytes.size()) {
    fail(fmt::format("of {} {} takes {} bytes, but has {}", packed.format.name(), packed.shape.to_string(), wanted,
                     stored.bytes.size()));
  }
  stored.type = packed.format.name();
  stored.format = packed.format;
  stored.shape = packed.shape;
}

/// A tensor beside a packed one: its scales or its zero points.
struct Companion {
  std::string_view suffix, one, rule;
};
constexpr Companion kCompanions[] = {
    {kScalesSuffix, "scale", "scales are finite and not negative"},
    {kZerosSuffix, "zero point", "zero points are integers from 0 to the largest code of the type"},
};

/// Copies the values out of such a tensor, which may lie at any address. `check` throws UsageError for one that is not
/// possible.
template <class Check>
std::vector<float> read_companion(const StoredTensor& stored, const Companion& companion, std::size_t count,
                                  const StoredTensor* tensor, Check check) {
  const std::string name = stored.name + std::string(companion.suffix);
  const auto fail = [&](const std::string& problem) {
    const std::uint64_t offset = tensor == nullptr ? stored.offset : tensor->offset;
    throw FormatError(stored.file, offset, fmt::format("tensor '{}' {}", name, problem));
  };
  if (tensor == nullptr) {
    fail(fmt::format("is missing: '{}' of {} needs its {}s", stored.name, stored.type, companion.one));
  }
  if (tensor->format != DType::float32) fail(fmt::format("must be F32, not {}", tensor->type));
  if (tensor->shape.elements() != count) {
    fail(fmt::format("has {} {}s, but {} {} needs {}", tensor->shape.elements(), companion.one, stored.type,
                     stored.shape.to_string(), count));
  }
  std::vector<float> values(count);
  if (count != 0) std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
  for (std::size_t i = 0; i < count; ++i) {
    try {
      check(values[i]);
    } catch (const UsageError&) {
      fail(fmt::format("holds {} as {} {}: {}", values[i], companion.one, i, companion.rule));
    }
  }
  return values;
}

/// REQUIRES: `packed` has scales. `find` gives the tensor of a name, or null.
template <class Find>
void read_scales(StoredTensor& stored, const PackedTensor& packed, Find find) {
  const ScaleLayout layout = layout_of(packed);
  const auto read = [&](const Companion& companion, auto check) {
    return read_companion(stored, companion, layout.count, find(stored.name + std::string(companion.suffix)), check);
  };
  stored.scale_values = read(kCompanions[0], check_scale);
  stored.scale_group = layout.group;
  if (!packed.zero_points) return;
  stored.zero_points = read(kCompanions[1], [&](float zero) { check_zero_point(packed.format, zero); });
}

}  // namespace

std::size_t packed_scale_count(const PackedTensor& tensor) { return layout_of(tensor).count; }

std::string packed_text(std::span<const PackedTensor> tensors) {
  StringSink sink;
  JsonWriter json(sink, JsonStyle::compact);
  json.begin_object();
  for (const PackedTensor& tensor : tensors) {
    layout_of(tensor);
    json.key(tensor.name);
    json.begin_object();
    json.member("type", tensor.format.name());
    json.key("shape");
    json.array(tensor.shape.extents());
    if (tensor.format.has_scales()) {
      json.member("granularity", kGranularities[static_cast<std::size_t>(tensor.granularity)]);
    }
    if (tensor.granularity == Granularity::group) json.member("group", tensor.group);
    if (tensor.zero_points) json.member("zero_points", true);
    json.end_object();
  }
  json.end_object();
  return std::move(sink.text());
}

std::vector<PackedTensor> parse_packed(std::string_view text, std::string_view file) {
  const JsonDocument document = JsonDocument::parse(text, file);
  std::vector<PackedTensor> tensors;
  for (const JsonMember& member : document.root().members(kPackedKey)) {
    tensors.push_back(read_entry(member.key, member.value));
  }
  return tensors;
}

std::vector<StoredTensor> unpack_tensors(std::vector<StoredTensor> tensors, std::string_view text,
                                         std::string_view path) {
  const std::vector<PackedTensor> packed = parse_packed(text, fmt::format("{}, entry {}", path, kPackedKey));
  std::unordered_map<std::string_view, StoredTensor*> by_name;
  for (StoredTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  const auto find = [&](const std::string& name) {
    const auto found = by_name.find(name);
    return found == by_name.end() ? nullptr : found->second;
  };
  std::unordered_set<const StoredTensor*> hidden;  // scales; those that are missing are an error of their tensor
  for (const PackedTensor& entry : packed) {
    const StoredTensor* tensor = find(entry.name);
    if (tensor == nullptr) {
      throw FormatError(path, 0,
                        fmt::format("{} names '{}', which is not a tensor of the file", kPackedKey, entry.name));
    }
    if (!entry.format.has_scales()) continue;
    for (const Companion& companion : kCompanions) {
      if (companion.suffix == kZerosSuffix && !entry.zero_points) continue;
      if (const StoredTensor* beside = find(entry.name + std::string(companion.suffix))) hidden.insert(beside);
    }
  }
  for (const PackedTensor& entry : packed) {
    StoredTensor& tensor = *find(entry.name);
    if (hidden.contains(&tensor)) {
      throw FormatError(
          path, tensor.offset,
          fmt::format("tensor '{}' is packed {}, but holds the scales of another", tensor.name, entry.format.name()));
    }
    unwrap(tensor, entry);
    if (entry.format.has_scales()) read_scales(tensor, entry, find);
  }
  std::vector<StoredTensor> list;
  list.reserve(tensors.size() - hidden.size());
  for (StoredTensor& tensor : tensors) {
    if (!hidden.contains(&tensor)) list.push_back(std::move(tensor));
  }
  return list;
}

std::vector<StoredTensor> list_safetensors(std::span<const SafetensorsTensor> tensors,
                                           std::span<const std::pair<std::string, std::string>> metadata,
                                           std::string_view path) {
  std::vector<StoredTensor> list;
  list.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) list.push_back(stored_tensor(tensor, path));
  for (const auto& [key, value] : metadata) {
    if (key == kPackedKey) return unpack_tensors(std::move(list), value, path);
  }
  return list;
}

}  // namespace imago::files
