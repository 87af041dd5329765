#include "files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/checked.h"
#include "base/file.h"
#include "base/parallel.h"
#include "files/detect.h"
#include "files/json.h"
#include "files/name_index.h"
#include "files/tensor_file.h"
#include "imago/error.h"

namespace imago {

namespace {

struct TypeRow {
  SafetensorsType type;
  std::string_view name;
  int bits;
  std::optional<DType> dtype = std::nullopt;  // with the same bytes
};

constexpr std::array<TypeRow, 17> kTypes = {{
    {SafetensorsType::f64, "F64", 64, DType::float64},
    {SafetensorsType::f32, "F32", 32, DType::float32},
    {SafetensorsType::f16, "F16", 16, DType::float16},
    {SafetensorsType::bf16, "BF16", 16, DType::bfloat16},
    {SafetensorsType::i64, "I64", 64, DType::int64},
    {SafetensorsType::i32, "I32", 32, DType::int32},
    {SafetensorsType::i16, "I16", 16, DType::int16},
    {SafetensorsType::i8, "I8", 8, DType::int8},
    {SafetensorsType::u64, "U64", 64, DType::uint64},
    {SafetensorsType::u32, "U32", 32, DType::uint32},
    {SafetensorsType::u16, "U16", 16, DType::uint16},
    {SafetensorsType::u8, "U8", 8, DType::uint8},
    {SafetensorsType::boolean, "BOOL", 8},
    {SafetensorsType::f8_e4m3, "F8_E4M3", 8, DType::fp8e4m3},
    {SafetensorsType::f8_e5m2, "F8_E5M2", 8, DType::fp8e5m2},
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

SafetensorsType read_type(const JsonValue& value, const std::string& called) {
  const std::string text = value.string("the dtype of " + called);
  if (const auto type = find_safetensors_type(text)) return *type;
  value.fail(
      fmt::format("{} has the dtype '{}', which is not known: the names are upper-case, such as F32, BF16, I8 "
                  "and F8_E4M3",
                  called, text));
}

/// The data of all tensors begin at `start`.
Placed read_tensor(const std::string& name, const JsonValue& entry, std::span<const std::byte> file,
                   std::size_t start) {
  const std::span<const std::byte> data = file.subspan(start);
  const std::string called = fmt::format("tensor '{}'", name);
  if (entry.kind() != JsonKind::object) entry.fail(called + " must be an object");
  SafetensorsTensor tensor;
  tensor.name = name;
  tensor.type = read_type(entry.require("dtype", called), called);
  tensor.shape = read_safetensors_shape(entry.require("shape", called));

  const JsonValue offsets = entry.require("data_offsets", called);
  if (offsets.elements("data_offsets").size() != 2) offsets.fail("data_offsets must be two numbers");
  std::vector<std::size_t> ends;
  for (const JsonMember& end : offsets.elements("data_offsets")) {
    ends.push_back(static_cast<std::size_t>(end.value.integer("an offset", 0, kMaxExtent)));
  }
  if (ends[0] > ends[1]) offsets.fail(called + " ends before it begins");
  if (ends[1] > data.size()) {
    offsets.fail(fmt::format("tensor '{}' ends {} bytes past the end of the file: it may be cut off", name,
                             ends[1] - data.size()));
  }
  tensor.bytes = data.subspan(ends[0], ends[1] - ends[0]);
  tensor.offset = start + ends[0];
  std::size_t wanted = 0;
  try {
    wanted = safetensors_bytes(tensor.type, tensor.shape);
  } catch (const ShapeError& error) {
    entry.fail(fmt::format("tensor '{}': {}", name, error.what()));
  }
  if (wanted != tensor.bytes.size()) {
    offsets.fail(fmt::format("tensor '{}' of {} {} takes {} bytes, but its data_offsets span {}", name,
                             imago::name(tensor.type), tensor.shape.to_string(), wanted, tensor.bytes.size()));
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
    header.fail(fmt::format("{} bytes after the last tensor belong to no tensor", data_bytes - covered));
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
  const auto found = std::ranges::find(kTypes, text, &TypeRow::name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
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

namespace {

// Elements per part of the pool: some 20 µs of table look-ups.
constexpr std::size_t kGrain = 32768;

/// 2^(code - 127); 255 is NaN (OCP MX).
float from_e8m0(unsigned code) {
  if (code == 255) return std::bit_cast<float>(0x7FC00000u);
  return std::bit_cast<float>(code == 0 ? 0x00400000u : code << 23);
}

std::array<float, 16> make_fp4_values() {
  std::array<float, 16> values{};
  for (unsigned code = 0; code < 16; ++code) values[code] = from_fp4({static_cast<std::uint8_t>(code)});
  return values;
}

void decode_bool(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const std::span<const std::byte> bytes = tensor.bytes.subspan(first, out.size());
  const auto wrong = std::ranges::find_if(bytes, [](std::byte b) { return b > std::byte{1}; });
  if (wrong != bytes.end()) {
    throw FormatError(
        tensor.file, tensor.offset,
        fmt::format("tensor '{}' of BOOL holds {} as element {}", tensor.name, std::to_integer<int>(*wrong),
                    first + static_cast<std::size_t>(wrong - bytes.begin())));
  }
  std::ranges::transform(bytes, out.begin(), [](std::byte b) { return static_cast<float>(b); });
}

}  // namespace

std::optional<DType> safetensors_dtype(SafetensorsType type) noexcept { return row(type).dtype; }

std::optional<SafetensorsType> safetensors_type(Format format) noexcept {
  const auto found =
      std::ranges::find_if(kTypes, [&](const TypeRow& row) { return row.dtype && *row.dtype == format; });
  return found == kTypes.end() ? std::nullopt : std::optional(found->type);
}

void decode_special(const StoredTensor& tensor, std::size_t first, std::span<float> out) {
  const SafetensorsType type = *tensor.safetensors_type;
  if (type == SafetensorsType::boolean) {
    decode_bool(tensor, first, out);
    return;
  }
  static const std::array<float, 16> fp4_values = make_fp4_values();
  parallel_for(out.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const std::size_t place = first + i;
      if (type == SafetensorsType::f4) {
        const unsigned pair = std::to_integer<unsigned>(tensor.bytes[place / 2]);
        out[i] = fp4_values[place % 2 == 0 ? pair & 15 : pair >> 4];
      } else {
        out[i] = from_e8m0(std::to_integer<unsigned>(tensor.bytes[place]));
      }
    }
  });
}

void decode_safetensors(const SafetensorsTensor& tensor, std::string_view path, std::span<float> out) {
  decode_tensor(stored_tensor(tensor, path), 0, out);
}

}  // namespace files

struct SafetensorsFile::State {
  MappedFile file;
  files::SafetensorsHeader header;
  files::NameIndex<SafetensorsTensor> by_name;
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::string& path, bool eager) {
  MappedFile file = MappedFile::open(path, eager ? Reading::eager : Reading::automatic);
  files::SafetensorsHeader header = files::parse_safetensors(file.bytes(), path);
  files::NameIndex<SafetensorsTensor> by_name(header.tensors, &SafetensorsTensor::name);
  return SafetensorsFile(std::make_unique<State>(State{std::move(file), std::move(header), std::move(by_name)}));
}

const std::string& SafetensorsFile::path() const noexcept { return state_->file.path(); }

std::span<const SafetensorsTensor> SafetensorsFile::tensors() const noexcept { return state_->header.tensors; }

std::span<const std::pair<std::string, std::string>> SafetensorsFile::metadata() const noexcept {
  return state_->header.metadata;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const noexcept {
  return state_->by_name.find(name);
}

const SafetensorsTensor& SafetensorsFile::require(std::string_view name) const {
  const SafetensorsTensor* tensor = find(name);
  if (tensor == nullptr) throw FormatError(path(), 0, fmt::format("there is no tensor '{}'", name));
  return *tensor;
}

Tensor<float> SafetensorsFile::read_float32(std::string_view name) const {
  const SafetensorsTensor& tensor = require(name);
  Tensor<float> values(tensor.shape);
  files::decode_safetensors(tensor, path(), values.values());
  return values;
}

}  // namespace imago
