// Dtypes one value at a time with quantize_value and dequantize_value, block formats one block at a time.

#include <bit>
#include <cstring>

#include "imago/numeric.h"
#include "kernels/folders.h"
#include "quant/blocks.h"

namespace imago::kernels::ref {

namespace {

template <class T>
concept HasBits = requires(T code) {
  code.bits;
};

/// A code as the low bits of a byte, for types that share bytes: two's complement, binary +1 as 1 and -1 as 0.
template <Numeric T>
unsigned to_field(T code) noexcept {
  constexpr unsigned kMask = (1u << bits(dtype_of<T>)) - 1;
  if constexpr (std::same_as<T, Binary>) {
    return code.value > 0 ? 1u : 0u;
  } else if constexpr (HasBits<T>) {
    return code.bits & kMask;
  } else {
    return static_cast<unsigned>(code.value) & kMask;
  }
}

template <Numeric T>
T from_field(unsigned field) noexcept {
  constexpr int kBits = bits(dtype_of<T>);
  if constexpr (std::same_as<T, Binary>) {
    return {static_cast<std::int8_t>(field != 0 ? 1 : -1)};
  } else if constexpr (HasBits<T>) {
    return {static_cast<std::uint8_t>(field)};
  } else if constexpr (info(dtype_of<T>).kind == NumberKind::unsigned_integer) {
    return {static_cast<std::uint8_t>(field)};
  } else {
    const int sign = 1 << (kBits - 1);
    return {static_cast<std::int8_t>((static_cast<int>(field) ^ sign) - sign)};
  }
}

/// Position of weight i within its byte: the first one sits in the top bits.
template <Numeric T>
constexpr int field_shift(std::size_t i) noexcept {
  constexpr int kBits = bits(dtype_of<T>);
  constexpr int kPerByte = 8 / kBits;
  return 8 - kBits * (static_cast<int>(i % kPerByte) + 1);
}

/// The scale of weight i, for encoding and decoding alike.
template <class Args>
float zero_point(const Args& a, std::size_t i) noexcept {
  return a.zero_points == nullptr ? 0.0f : a.zero_points[(a.first + i) / a.group];
}

template <Numeric T>
void encode(const EncodeArgs& a) noexcept {
  constexpr int kBits = bits(dtype_of<T>);
  for (std::size_t i = 0; i < a.count; ++i) {
    const T code = quantize_value<T>(a.weights[i], a.scales[(a.first + i) / a.group], zero_point(a, i));
    if constexpr (kBits >= 8) {
      std::memcpy(a.packed + i * sizeof(T), &code, sizeof(T));
    } else {
      std::byte& byte = a.packed[i / (8 / kBits)];
      if (i % (8 / kBits) == 0) byte = std::byte{0};
      byte |= std::byte{static_cast<unsigned char>(to_field(code) << field_shift<T>(i))};
    }
  }
}

template <Numeric T>
void decode(const DecodeArgs& a) noexcept {
  constexpr int kBits = bits(dtype_of<T>);
  for (std::size_t i = 0; i < a.count; ++i) {
    T code;
    if constexpr (kBits >= 8) {
      std::memcpy(&code, a.packed + i * sizeof(T), sizeof(T));
    } else {
      const unsigned byte = std::to_integer<unsigned>(a.packed[i / (8 / kBits)]);
      code = from_field<T>((byte >> field_shift<T>(i)) & ((1u << kBits) - 1));
    }
    a.weights[i] = dequantize_value<T>(code, a.scales[(a.first + i) / a.group], zero_point(a, i));
  }
}

template <class Block>
requires(!Numeric<Block>) void encode(const EncodeArgs& a) noexcept {
  quant::encode_blocks<Block>(a.weights, a.count, a.importance, a.row_values, a.first, a.packed);
}

template <class Block>
requires(!Numeric<Block>) void decode(const DecodeArgs& a) noexcept {
  quant::decode_blocks<Block>(a.packed, a.count, a.weights);
}

}  // namespace

// Little-endian layouts are copied as they lie in memory.
static_assert(std::endian::native == std::endian::little);

EncodeFunction encoder(Format format) noexcept {
  return quant::visit(format, []<class T>(std::type_identity<T>) -> EncodeFunction { return &encode<T>; });
}

DecodeFunction decoder(Format format) noexcept {
  return quant::visit(format, []<class T>(std::type_identity<T>) -> DecodeFunction { return &decode<T>; });
}

}  // namespace imago::kernels::ref
