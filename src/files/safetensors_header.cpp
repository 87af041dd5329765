#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "files/detect.h"
#include "files/json.h"
#include "files/safetensors.h"
#include "imago/error.h"

namespace imago {

namespace {

struct TypeRow {
  SafetensorsType type;
  std::string_view name;
  int bits;
};

constexpr std::array<TypeRow, 17> kTypes = {{
    {SafetensorsType::f64, "F64", 64},
    {SafetensorsType::f32, "F32", 32},
    {SafetensorsType::f16, "F16", 16},
    {SafetensorsType::bf16, "BF16", 16},
    {SafetensorsType::i64, "I64", 64},
    {SafetensorsType::i32, "I32", 32},
    {SafetensorsType::i16, "I16", 16},
    {SafetensorsType::i8, "I8", 8},
    {SafetensorsType::u64, "U64", 64},
    {SafetensorsType::u32, "U32", 32},
    {SafetensorsType::u16, "U16", 16},
    {SafetensorsType::u8, "U8", 8},
    {SafetensorsType::boolean, "BOOL", 8},
    {SafetensorsType::f8_e4m3, "F8_E4M3", 8},
    {SafetensorsType::f8_e5m2, "F8_E5M2", 8},
    {SafetensorsType::f8_e8m0, "F8_E8M0", 8},
    {SafetensorsType::f4, "F4", 4},
}};

constexpr const TypeRow& row(SafetensorsType type) { return kTypes[static_cast<std::size_t>(type)]; }

}  // namespace

std::string_view name(SafetensorsType type) noexcept { return row(type).name; }
int bits(SafetensorsType type) noexcept { return row(type).bits; }

namespace files {

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kMaxRank = 16;
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 53;

/// Where a tensor lies in the data, and the place in the header to blame.
struct Placed {
  SafetensorsTensor tensor;
  std::size_t begin, end;
  JsonValue offsets;
};

JsonValue require(const JsonValue& entry, std::string_view tensor, std::string_view key) {
  const std::optional<JsonValue> value = entry.find(key);
  if (!value) entry.fail(fmt::format("tensor '{}' has no {}", tensor, key));
  return *value;
}

/// The data of all tensors begin at `start`.
Placed read_tensor(const std::string& name, const JsonValue& entry, std::span<const std::byte> file,
                   std::size_t start) {
  const std::span<const std::byte> data = file.subspan(start);
  if (entry.kind() != JsonKind::object) entry.fail(fmt::format("tensor '{}' must be an object", name));
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.dtype = require(entry, name, "dtype").string(fmt::format("the dtype of tensor '{}'", name));
  tensor.type = find_safetensors_type(tensor.dtype);
  tensor.shape = read_safetensors_shape(require(entry, name, "shape"));

  const JsonValue offsets = require(entry, name, "data_offsets");
  std::vector<std::size_t> ends;
  for (const JsonMember& end : offsets.elements("data_offsets")) {
    if (ends.size() == 2) offsets.fail("data_offsets must be two numbers");
    ends.push_back(static_cast<std::size_t>(end.value.integer("an offset", 0, kMaxExtent)));
  }
  if (ends.size() != 2) offsets.fail("data_offsets must be two numbers");
  if (ends[0] > ends[1]) offsets.fail(fmt::format("tensor '{}' ends before it begins", name));
  if (ends[1] > data.size()) {
    offsets.fail(fmt::format("tensor '{}' ends {} bytes past the end of the file: it may be cut off", name,
                             ends[1] - data.size()));
  }
  tensor.bytes = data.subspan(ends[0], ends[1] - ends[0]);
  tensor.offset = start + ends[0];
  if (tensor.type) {
    std::size_t wanted = 0;
    try {
      wanted = safetensors_bytes(*tensor.type, tensor.shape);
    } catch (const ShapeError& error) {
      entry.fail(fmt::format("tensor '{}': {}", name, error.what()));
    }
    if (wanted != tensor.bytes.size()) {
      offsets.fail(fmt::format("tensor '{}' of {} {} takes {} bytes, but its data_offsets span {}", name, tensor.dtype,
                               tensor.shape.to_string(), wanted, tensor.bytes.size()));
    }
  }
  return {std::move(tensor), ends[0], ends[1], offsets};
}

std::vector<std::pair<std::string, std::string>> read_metadata(const JsonValue& value) {
  std::vector<std::pair<std::string, std::string>> metadata;
  for (const JsonMember& member : value.members("__metadata__")) {
    metadata.emplace_back(member.key, member.value.string("a value of __metadata__"));
  }
  return metadata;
}

/// REQUIRES: sorted by begin, then end.
void check_cover(const std::vector<Placed>& placed, const JsonValue& header, std::size_t data_bytes) {
  std::size_t covered = 0;
  for (const Placed& p : placed) {
    if (p.begin < covered) p.offsets.fail(fmt::format("tensor '{}' overlaps another", p.tensor.name));
    if (p.begin > covered) {
      p.offsets.fail(
          fmt::format("{} bytes in front of tensor '{}' belong to no tensor", p.begin - covered, p.tensor.name));
    }
    covered = p.end;
  }
  if (covered != data_bytes) {
    header.fail(fmt::format("{} bytes behind the last tensor belong to no tensor", data_bytes - covered));
  }
}

}  // namespace

Shape read_safetensors_shape(const JsonValue& value) {
  std::vector<std::size_t> extents;
  for (const JsonMember& extent : value.elements("the shape")) {
    if (extents.size() == kMaxRank) value.fail(fmt::format("a shape has more than {} dimensions", kMaxRank));
    extents.push_back(static_cast<std::size_t>(extent.value.integer("an extent of the shape", 0, kMaxExtent)));
  }
  try {
    return Shape(std::move(extents));
  } catch (const ShapeError&) {
    value.fail("the shape has more elements than a machine can count");
  }
}

std::optional<SafetensorsType> find_safetensors_type(std::string_view text) noexcept {
  for (const TypeRow& known : kTypes) {
    if (known.name == text) return known.type;
  }
  return std::nullopt;
}

std::size_t safetensors_bytes(SafetensorsType type, const Shape& shape) {
  const std::size_t all = checked_mul(shape.elements(), static_cast<std::size_t>(bits(type)), "the size of the tensor");
  if (all % 8 != 0) throw ShapeError(fmt::format("{} elements of {} end amid a byte", shape.elements(), name(type)));
  return all / 8;
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view path) {
  static_assert(std::endian::native == std::endian::little);
  if (file.size() < kLengthBytes) {
    throw FormatError(path, 0, fmt::format("a safetensors file has at least 8 bytes, this one {}", file.size()));
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes < 2 || header_bytes > kMaxSafetensorsHeader) {
    refuse_mistakes(file, path);
    throw FormatError(
        path, 0,
        fmt::format("a header of {} bytes, where safetensors files have from 2 to {}: it is none, or damaged",
                    header_bytes, kMaxSafetensorsHeader));
  }
  if (header_bytes > file.size() - kLengthBytes) {
    refuse_mistakes(file, path);
    throw FormatError(path, 0,
                      fmt::format("the header has {} bytes, but the file ends after {}: it may be cut off",
                                  header_bytes, file.size() - kLengthBytes));
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, header_bytes);
  if (text.front() != '{') refuse_mistakes(file, path);
  if (text.front() != '{') throw FormatError(path, kLengthBytes, "the header does not start with '{'");
  const JsonDocument document = JsonDocument::parse(text, path, {.base = kLengthBytes});
  const std::size_t start = kLengthBytes + header_bytes;

  SafetensorsHeader header;
  std::vector<Placed> placed;
  for (const JsonMember& member : document.root().members("the header")) {
    if (member.key == "__metadata__") {
      header.metadata = read_metadata(member.value);
    } else if (member.key.empty()) {
      member.value.fail("a tensor has an empty name");
    } else {
      placed.push_back(read_tensor(member.key, member.value, file, start));
    }
  }
  std::ranges::stable_sort(placed, {}, [](const Placed& p) { return std::pair(p.begin, p.end); });
  check_cover(placed, document.root(), file.size() - start);
  header.tensors.reserve(placed.size());
  for (Placed& p : placed) header.tensors.push_back(std::move(p.tensor));
  return header;
}

}  // namespace files
}  // namespace imago
