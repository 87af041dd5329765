#include "files/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "base/file.h"
#include "base/parallel.h"
#include "imago/codec.h"
#include "imago/error.h"

namespace imago {

namespace files {

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

void decode_bool(const NamedBytes& tensor, std::size_t first, std::span<float> out) {
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

std::optional<DType> safetensors_dtype(SafetensorsType type) noexcept {
  switch (type) {
    case SafetensorsType::f64: return DType::float64;
    case SafetensorsType::f32: return DType::float32;
    case SafetensorsType::f16: return DType::float16;
    case SafetensorsType::bf16: return DType::bfloat16;
    case SafetensorsType::i64: return DType::int64;
    case SafetensorsType::i32: return DType::int32;
    case SafetensorsType::i16: return DType::int16;
    case SafetensorsType::i8: return DType::int8;
    case SafetensorsType::u64: return DType::uint64;
    case SafetensorsType::u32: return DType::uint32;
    case SafetensorsType::u16: return DType::uint16;
    case SafetensorsType::u8: return DType::uint8;
    case SafetensorsType::f8_e4m3: return DType::fp8e4m3;
    case SafetensorsType::f8_e5m2: return DType::fp8e5m2;
    case SafetensorsType::boolean:
    case SafetensorsType::f8_e8m0:
    case SafetensorsType::f4: break;
  }
  return std::nullopt;
}

void decode_special(SafetensorsType type, const NamedBytes& tensor, std::size_t first, std::span<float> out) {
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
  if (const std::optional<DType> dtype = safetensors_dtype(*tensor.type)) {
    constexpr float kOne = 1;
    decode(*dtype, tensor.bytes, {.values = {&kOne, 1}, .group = std::max<std::size_t>(out.size(), 1)}, out);
  } else {
    decode_special(*tensor.type, {tensor.name, path, tensor.offset, tensor.bytes}, 0, out);
  }
}

}  // namespace files

struct SafetensorsFile::State {
  MappedFile file;
  files::SafetensorsHeader header;
  std::vector<std::size_t> by_name;  // indices of tensors, sorted by name
};

SafetensorsFile::SafetensorsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;
SafetensorsFile::~SafetensorsFile() = default;

SafetensorsFile SafetensorsFile::open(const std::string& path, bool eager) {
  MappedFile file = MappedFile::open(path, eager ? Reading::eager : Reading::automatic);
  files::SafetensorsHeader header = files::parse_safetensors(file.bytes(), path);
  std::vector<std::size_t> by_name(header.tensors.size());
  std::iota(by_name.begin(), by_name.end(), std::size_t{0});
  std::ranges::sort(by_name, {}, [&](std::size_t i) -> const std::string& { return header.tensors[i].name; });
  return SafetensorsFile(std::make_unique<State>(State{std::move(file), std::move(header), std::move(by_name)}));
}

const std::string& SafetensorsFile::path() const noexcept { return state_->file.path(); }

std::span<const SafetensorsTensor> SafetensorsFile::tensors() const noexcept { return state_->header.tensors; }

std::span<const std::pair<std::string, std::string>> SafetensorsFile::metadata() const noexcept {
  return state_->header.metadata;
}

const SafetensorsTensor* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto name_of = [&](std::size_t i) -> std::string_view { return state_->header.tensors[i].name; };
  const auto found = std::ranges::lower_bound(state_->by_name, name, {}, name_of);
  return found != state_->by_name.end() && name_of(*found) == name ? &state_->header.tensors[*found] : nullptr;
}

const SafetensorsTensor& SafetensorsFile::require(std::string_view name) const {
  const SafetensorsTensor* tensor = find(name);
  if (tensor == nullptr) throw FormatError(path(), 0, fmt::format("there is no tensor '{}'", name));
  return *tensor;
}

Tensor<float> SafetensorsFile::read_float32(std::string_view name) const {
  const SafetensorsTensor& tensor = require(name);
  if (!tensor.type) {
    throw UnsupportedError(
        fmt::format("{}: tensor '{}' is of type '{}', which imago does not know", path(), name, tensor.dtype));
  }
  Tensor<float> values(tensor.shape);
  files::decode_safetensors(tensor, path(), values.values());
  return values;
}

}  // namespace imago
