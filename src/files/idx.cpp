#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "files/dataset_readers.h"
#include "imago/error.h"

namespace imago::files {

namespace {

/// Type codes of the third byte.
enum : std::uint8_t { kUnsignedByte = 8, kByte = 9, kShort = 11, kInt = 12, kFloat = 13, kDouble = 14 };

constexpr std::size_t kMostAxes = 8;

std::size_t element_bytes(std::uint8_t code) noexcept {
  switch (code) {
    case kUnsignedByte:
    case kByte: return 1;
    case kShort: return 2;
    case kInt:
    case kFloat: return 4;
    case kDouble: return 8;
    default: return 0;
  }
}

/// The big-endian number in `bytes`.
template <class Integer>
Integer big_endian(std::span<const std::byte> bytes) noexcept {
  Integer value = 0;
  for (const std::byte byte : bytes) value = static_cast<Integer>(value << 8 | std::to_integer<Integer>(byte));
  return value;
}

float element(std::uint8_t code, std::span<const std::byte> bytes) noexcept {
  switch (code) {
    case kUnsignedByte: return static_cast<float>(std::to_integer<std::uint8_t>(bytes[0]));
    case kByte: return static_cast<float>(static_cast<std::int8_t>(bytes[0]));
    case kShort: return static_cast<float>(static_cast<std::int16_t>(big_endian<std::uint16_t>(bytes)));
    case kInt: return static_cast<float>(static_cast<std::int32_t>(big_endian<std::uint32_t>(bytes)));
    case kFloat: return std::bit_cast<float>(big_endian<std::uint32_t>(bytes));
    default: return static_cast<float>(std::bit_cast<double>(big_endian<std::uint64_t>(bytes)));
  }
}

}  // namespace

bool is_idx(std::span<const std::byte> bytes) noexcept {
  return bytes.size() >= 4 && bytes[0] == std::byte{0} && bytes[1] == std::byte{0} &&
         element_bytes(std::to_integer<std::uint8_t>(bytes[2])) != 0 && bytes[3] != std::byte{0};
}

IdxArray parse_idx(std::span<const std::byte> bytes, std::string_view file) {
  if (!is_idx(bytes))
    throw FormatError(file, 0, "no IDX file: it must start with 0, 0, a type code and the number of axes");
  const std::uint8_t code = std::to_integer<std::uint8_t>(bytes[2]);
  const std::size_t axes = std::to_integer<std::size_t>(bytes[3]);
  if (axes > kMostAxes) throw FormatError(file, 3, fmt::format("{} axes; at most {} are read", axes, kMostAxes));
  const std::size_t header = 4 + 4 * axes;
  if (bytes.size() < header) throw FormatError(file, bytes.size(), "the file ends within its header");

  // The elements that are there bound every extent, so that products of hostile ones cannot wrap.
  const std::size_t width = element_bytes(code), available = (bytes.size() - header) / width;
  std::vector<std::size_t> extents;
  std::size_t count = 1;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::size_t at = 4 + 4 * axis;
    extents.push_back(big_endian<std::uint32_t>(bytes.subspan(at, 4)));
    if (extents.back() == 0) throw FormatError(file, at, "an axis of length 0");
    if (extents.back() > available / count) {
      throw FormatError(file, at,
                        fmt::format("axis {} of length {} goes past the end of the file", axis, extents.back()));
    }
    count *= extents.back();
  }
  if (bytes.size() - header != count * width) {
    throw FormatError(file, header + count * width,
                      fmt::format("{} bytes after the last element", bytes.size() - header - count * width));
  }

  IdxArray array{Tensor<float>(Shape(std::move(extents))), code == kUnsignedByte};
  for (std::size_t i = 0; i < count; ++i) array.values[i] = element(code, bytes.subspan(header + i * width, width));
  return array;
}

Dataset join_idx(IdxArray images, IdxArray labels) {
  const std::size_t count = images.values.shape()[0];
  if (labels.values.shape()[0] != count) {
    throw ShapeError(fmt::format("IDX: {} images and {} labels", count, labels.values.shape()[0]));
  }
  if (images.is_bytes) {
    for (float& value : images.values.values()) value /= 255;
  }
  return {std::move(images.values), std::move(labels.values)};
}

}  // namespace imago::files
