#include "kernels/cuda/host_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "imago/codec.h"
#include "imago/error.h"
#include "imago/numeric.h"
#include "kernels/cuda/decode.cuh"
#include "quant/blocks.h"

namespace imago::kernels::cuda {

namespace {

using quant::BlockScales;
using quant::ScaleKind;

constexpr std::size_t kPlaneAlignment = 256;
constexpr std::size_t kBehind =
    4096;  // kernels read pieces of rows up to this size, and the last may end past its plane

std::uint32_t word_at(const std::uint8_t* codes) noexcept {
  std::uint32_t word;
  std::memcpy(&word, codes, 4);
  return word;
}

/// Every kStep'th word of four codes.
template <int kShift, int kStep = 1>
std::uint32_t merge(const std::uint8_t* codes, int words) noexcept {
  std::uint32_t merged = 0;
  for (int k = 0; k < words; ++k) merged |= word_at(codes + 4 * kStep * k) << kShift * k;
  return merged;
}

void put(std::byte* to, std::size_t index, std::uint32_t word) noexcept { std::memcpy(to + 4 * index, &word, 4); }

/// The eight nibbles of a word of CodesTable, lowest first.
std::uint32_t nibbles_in_order(const std::uint8_t* codes) noexcept {
  std::uint32_t word = 0;
  for (int k = 0; k < 8; ++k) word |= static_cast<std::uint32_t>(codes[k]) << 4 * k;
  return word;
}

// 32 codes of a group into the bits that the decoders of codes.cuh expect. Codes have their zero point added; levels
// come as their numbers.

void put_codes(std::type_identity<Codes1>, const std::uint8_t* c, std::byte* to, std::byte*) noexcept {
  put(to, 0, merge<1>(c, 8));
}
void put_codes(std::type_identity<Codes2>, const std::uint8_t* c, std::byte* to, std::byte*) noexcept {
  for (std::size_t w = 0; w < 2; ++w) put(to, w, merge<2, 2>(c + 4 * w, 4));
}
void put_codes(std::type_identity<Codes4>, const std::uint8_t* c, std::byte* to, std::byte*) noexcept {
  for (std::size_t w = 0; w < 4; ++w) put(to, w, merge<4>(c + 8 * w, 2));
}
void put_codes(std::type_identity<Codes8>, const std::uint8_t* c, std::byte* to, std::byte*) noexcept {
  std::memcpy(to, c, 32);
}
template <class Levels>
void put_codes(std::type_identity<CodesTable<Levels>>, const std::uint8_t* c, std::byte* to, std::byte*) noexcept {
  for (std::size_t w = 0; w < 4; ++w) put(to, w, nibbles_in_order(c + 8 * w));
}

template <class Levels>
void put_codes(std::type_identity<CodesOfEight<Levels>>, const std::uint8_t* c, std::byte* to,
               std::byte* high) noexcept {
  std::uint32_t words[2] = {}, third = 0;
  for (int i = 0; i < 32; ++i) {
    const std::uint32_t code = c[i];
    words[i / 16] |= (code & 3) << (2 * (i / 8 % 2) + 4 * (i % 8));
    third |= (code >> 2) << (i / 8 + 4 * (i % 8));
  }
  put(to, 0, words[0]);
  put(to, 1, words[1]);
  put(high, 0, third);
}

/// Low and upper bits of codes that are kept in two planes.
struct SplitCodes {
  std::uint8_t low[32], upper[32];
  SplitCodes(const std::uint8_t* codes, int low_bits) noexcept {
    for (int i = 0; i < 32; ++i) {
      low[i] = static_cast<std::uint8_t>(codes[i] & ((1 << low_bits) - 1));
      upper[i] = static_cast<std::uint8_t>(codes[i] >> low_bits);
    }
  }
};
void put_codes(std::type_identity<Codes3>, const std::uint8_t* c, std::byte* to, std::byte* high) noexcept {
  const SplitCodes split(c, 2);
  put_codes(std::type_identity<Codes2>{}, split.low, to, nullptr);
  put_codes(std::type_identity<Codes1>{}, split.upper, high, nullptr);
}
void put_codes(std::type_identity<Codes5>, const std::uint8_t* c, std::byte* to, std::byte* high) noexcept {
  const SplitCodes split(c, 1);
  put_codes(std::type_identity<Codes4>{}, split.upper, to, nullptr);
  put_codes(std::type_identity<Codes1>{}, split.low, high, nullptr);
}
void put_codes(std::type_identity<Codes6>, const std::uint8_t* c, std::byte* to, std::byte* high) noexcept {
  const SplitCodes split(c, 2);
  put_codes(std::type_identity<Codes4>{}, split.upper, to, nullptr);
  put_codes(std::type_identity<Codes2>{}, split.low, high, nullptr);
}

// ---- scales of a block: bytes of its groups, and those of a super-block if they are apart

void put_half(std::byte* to, std::uint32_t code) noexcept { std::memcpy(to, &code, 2); }
void put_byte(std::byte* to, int value) noexcept { *to = static_cast<std::byte>(value); }

/// Integers of six bits with room for two, in which HidesSuper<4> finds the scale and the minimum of the super-block.
void put_with_hidden(const BlockScales& s, std::type_identity<ScaleSubMin>, std::byte* to) noexcept {
  const std::uint32_t super = s.scale | s.min << 16;
  for (unsigned i = 0; i < 16; ++i) {
    const unsigned integer = i % 2 == 0 ? s.subs[i / 2] : s.lows[i / 2];
    put_byte(to + i, static_cast<int>(integer << 2 | (super >> (8 * (i % 4) + 2 * (i / 4)) & 3)));
  }
}
/// The same of signed integers, in which HidesSuper<2> finds the scale.
template <class Scales>
void put_with_hidden(const BlockScales& s, std::type_identity<Scales>, std::byte* to) noexcept {
  for (unsigned i = 0; i < 8 * Scales::kBytes; ++i) {
    const unsigned nibble = s.scale >> 4 * (i % 4 ^ 1), bits = i < 8 ? nibble >> 2 * (i / 4) & 3 : 0;
    put_byte(to + i, static_cast<std::int8_t>(s.subs[i]) * 4 + static_cast<int>(bits));
  }
}

template <class Block, class Scales>
void put_scales(const Block& block, std::byte* scales, std::byte* supers) noexcept {
  const BlockScales s = block.scales();
  if constexpr (Block::kScales == ScaleKind::single) {
    std::memcpy(scales, &s.scale, 4);
  } else if constexpr (Block::kScales == ScaleKind::half) {
    if constexpr (Block::kGroup == 256) {
      put_half(supers, s.scale);
    } else {
      for (std::size_t g = 0; g < Block::kGroup / kGroup; ++g) {  // repeated for each group under it
        put_half(scales + g * Scales::kBytes, s.scale);
        if (Block::kHasOffset) put_half(scales + g * Scales::kBytes + 2, s.min);
      }
    }
  } else if constexpr (Scales::kHidesSuper) {
    put_with_hidden(s, std::type_identity<Scales>{}, scales);
  } else {
    for (int g = 0; g < Block::kValues / Block::kGroup; ++g) put_byte(scales + g, s.subs[g] | s.lows[g] << 4);
    if constexpr (Block::kScales == ScaleKind::sub_scales) {
      put_half(supers, s.scale);
      if (Block::kHasOffset) put_half(supers + 2, s.min);
    }
  }
}

// ---- codes of blocks

/// The number of a level, for each signed byte.
template <class Levels>
constexpr std::array<std::uint8_t, 256> numbers_of_levels() {
  std::array<std::uint8_t, 256> numbers{};
  for (std::size_t n = 16; n-- > 0;)
    numbers[static_cast<std::uint8_t>(Levels::kTable[n])] = static_cast<std::uint8_t>(n);
  return numbers;
}

template <class Codes>
struct CodeNumbers {
  static std::uint8_t of(std::int8_t code, int zero) noexcept { return static_cast<std::uint8_t>(code + zero); }
};
template <class Levels>
struct CodeNumbers<CodesTable<Levels>> {
  static constexpr std::array<std::uint8_t, 256> kNumbers = numbers_of_levels<Levels>();
  static std::uint8_t of(std::int8_t code, int) noexcept { return kNumbers[static_cast<std::uint8_t>(code)]; }
};
template <class Levels>
struct CodeNumbers<CodesOfEight<Levels>> : CodeNumbers<CodesTable<Levels>> {};

template <class Block, class Form>
void lay_out_block(const Block& block, std::byte* codes, std::byte* high, std::byte* scales, std::byte* supers) {
  using Codes = typename Form::Codes;
  std::int8_t levels[Block::kValues];
  block.levels(levels);
  for (std::size_t g = 0; g < Block::kValues / kGroup; ++g) {
    std::uint8_t numbers[kGroup];
    for (std::size_t i = 0; i < kGroup; ++i) {
      numbers[i] = CodeNumbers<Codes>::of(levels[g * kGroup + i], static_cast<int>(Form::kZeroOfFormat));
    }
    put_codes(std::type_identity<Codes>{}, numbers, codes + g * Codes::kBytes, high + g * Codes::kHighBytes);
  }
  put_scales<Block, typename Form::Scales>(block, scales, supers);
}

template <class Block>
void lay_out_blocks(const PackedMatrix& m, const PlaneLayout& layout, std::size_t first, std::size_t last,
                    const PlaneTargets& to) {
  using Form = CodedOf<Block>;
  using Codes = typename Form::Codes;
  using Scales = typename Form::Scales;
  using Tile = ScaleTile<Scales>;
  constexpr std::size_t kGroups = Block::kValues / kGroup;
  const std::size_t blocks = m.cols / Block::kValues;
  const ScaleTileGrid scale_tiles = layout.scale_tiles();
  std::memset(to.scales, 0, layout.scale_rows(last - first) * layout.scales_row);
  for (std::size_t row = first; row < last; ++row) {
    const Block* block = reinterpret_cast<const Block*>(m.packed.data()) + m.first / Block::kValues + row * blocks;
    std::byte* codes = to.codes + (row - first) * layout.codes_row;
    std::byte* high = to.high + (row - first) * layout.high_row;
    const ScaleTileRow place(scale_tiles, static_cast<std::uint32_t>(row - first));
    for (std::size_t group = 0; group < blocks * kGroups; group += kGroups, ++block) {
      std::byte* tile = to.scales + place.tile_at<Scales>(scale_tiles, static_cast<std::uint32_t>(group));
      lay_out_block<Block, Form>(*block, codes + group * Codes::kBytes, high + group * Codes::kHighBytes,
                                 tile + place.row * Tile::kRow + group % kScaleTileGroups * Scales::kBytes,
                                 tile + Tile::kSupersAt + place.row * Scales::kSuperBytes);
    }
    const std::size_t done = m.cols / kGroup;
    std::fill(codes + done * Codes::kBytes, codes + layout.codes_row, std::byte{0});
    if (high != nullptr) std::fill(high + done * Codes::kHighBytes, high + layout.high_row, std::byte{0});
  }
}

// ---- dtypes

/// What is added to a field of a packed dtype (flipping its top bit, for signed ones) to make the code of its form.
struct FieldRule {
  unsigned flip;  // exclusive or: two's complement to a code that counts from the lowest value
  float zero;     // what Planes::zero subtracts again
};
constexpr FieldRule field_rule(DType dtype) noexcept {
  if (dtype == DType::int4) return {8, 8};
  if (dtype == DType::int2 || dtype == DType::ternary) return {2, 2};
  if (dtype == DType::binary) return {0, 1};
  if (dtype == DType::uint8) return {0x80, -128};
  return {0, 0};
}

template <class Form>
void lay_out_fields(const PackedMatrix& m, const PlaneLayout& layout, std::size_t first, std::size_t last,
                    const PlaneTargets& to) {
  using Codes = typename Form::Codes;
  const DType dtype = m.format.dtype();
  const std::size_t field_bits = static_cast<std::size_t>(bits(dtype));
  const unsigned mask = (1u << field_bits) - 1;
  const unsigned flip = field_rule(dtype).flip;
  for (std::size_t row = first; row < last; ++row) {
    std::byte* codes = to.codes + (row - first) * layout.codes_row;
    for (std::size_t g = 0; g < layout.codes_row / Codes::kBytes; ++g) {
      std::uint8_t numbers[kGroup] = {};
      const std::size_t count = g * kGroup < m.cols ? std::min(kGroup, m.cols - g * kGroup) : 0;
      std::size_t at = (m.first + row * m.cols + g * kGroup) * field_bits;  // in bits, first weight in the top bits
      for (std::size_t i = 0; i < count; ++i, at += field_bits) {
        const unsigned byte = std::to_integer<unsigned>(m.packed[at / 8]);
        numbers[i] = static_cast<std::uint8_t>((byte >> (8 - field_bits - at % 8) & mask) ^ flip);
      }
      put_codes(std::type_identity<Codes>{}, numbers, codes + g * Codes::kBytes, nullptr);
    }
  }
}

void lay_out_values(const PackedMatrix& m, const PlaneLayout& layout, std::size_t first, std::size_t last,
                    const PlaneTargets& to) {
  const std::size_t bytes = static_cast<std::size_t>(bits(m.format.dtype())) / 8;
  for (std::size_t row = first; row < last; ++row) {
    std::byte* codes = to.codes + (row - first) * layout.codes_row;
    std::memcpy(codes, m.packed.data() + (m.first + row * m.cols) * bytes, m.cols * bytes);
    std::fill(codes + m.cols * bytes, codes + layout.codes_row, std::byte{0});
  }
}

void lay_out_row_scales(const PackedMatrix& m, const PlaneLayout& layout, std::size_t first, std::size_t last,
                        float* to) {
  const std::size_t count = layout.row_scales_row / sizeof(float);
  for (std::size_t row = first; row < last; ++row) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t weight = m.first + row * m.cols + i * (m.cols / count);
      to[(row - first) * count + i] = imago::detail::effective_scale(m.scales.values[weight / m.scales.group]);
    }
  }
}

/// Zero points of the weights of a matrix, which may be a part of what they belong to.
std::span<const float> zero_points_of(const PackedMatrix& m) noexcept {
  if (m.scales.zero_points.empty()) return {};
  const std::size_t begin = m.first / m.scales.group, end = (m.first + m.rows * m.cols - 1) / m.scales.group + 1;
  return m.scales.zero_points.subspan(begin, end - begin);
}

bool holds_zero_points(const PackedMatrix& m) {
  const std::span<const float> zeros = zero_points_of(m);
  if (std::ranges::all_of(zeros, [](float zero) { return zero == 0; })) return true;
  const bool coded = visit_form(m.format, []<class Form>(std::type_identity<Form>) { return Form::kCoded; });
  return coded && std::ranges::all_of(zeros, [&](float zero) { return zero == zeros.front(); });
}

std::size_t aligned(std::size_t bytes) noexcept {
  return (bytes + kPlaneAlignment - 1) / kPlaneAlignment * kPlaneAlignment;
}

}  // namespace

PlaneSource::PlaneSource(const PackedMatrix& source) : matrix_(source) {
  check_matrix(source);
  if (holds_zero_points(source)) return;
  // Weights in front of the matrix are decoded with it: where it begins inside a byte, its scales do not.
  const std::size_t end = source.first + source.rows * source.cols;
  decoded_.resize(end);
  decode(source.format, source.packed.first(packed_bytes(source.format, end)), source.scales, decoded_);
  matrix_ = {
      .rows = source.rows, .cols = source.cols, .packed = std::as_bytes(std::span(decoded_)), .first = source.first};
}

PlaneLayout::PlaneLayout(const PackedMatrix& m)
    : PlaneLayout(m.format, m.rows, m.cols, (check_matrix(m), columns_per_scale(m))) {
  assert(holds_zero_points(m));
  const std::span<const float> zeros = zero_points_of(m);
  if (!zeros.empty()) shape_.zero += zeros.front();
}

PlaneLayout::PlaneLayout(Format format, std::size_t rows, std::size_t cols, std::size_t scale_columns) {
  // Kernels count groups of a matrix, and halves of them, in 32 bits.
  if (rows >= (std::size_t{1} << 31) / (padded_cols(cols) / kGroup + 4)) {
    throw ShapeError(fmt::format("a matrix of {} × {} is too large for a GPU", rows, cols));
  }
  shape_.rows = static_cast<std::uint32_t>(rows);
  shape_.cols = static_cast<std::uint32_t>(cols);
  shape_.groups = static_cast<std::uint32_t>(padded_cols(cols) / kGroup);
  if (format.has_scales()) {
    const std::size_t groups = scale_columns / kGroup;  // that share a scale; 0: the whole row
    shape_.row_scale_count = groups == 0 ? 1 : static_cast<std::uint32_t>(shape_.groups / groups);
    shape_.scale_shift = groups == 0 ? 31 : groups == 1 ? 0 : groups == 2 ? 1 : 2;
    shape_.zero = field_rule(format.dtype()).zero;
  }
  visit_form(format, [&]<class Form>(std::type_identity<Form>) {
    high_row = scales_row = 0;
    shape_.stride = (shape_.groups + 3) / 4 * 4;
    if constexpr (Form::kCoded) {
      codes_row = shape_.stride * Form::Codes::kBytes;
      high_row = shape_.stride * Form::Codes::kHighBytes;
      shape_.scale_tiles.width = (shape_.groups + 2 * kScaleTileGroups - 1) / (2 * kScaleTileGroups) * 2;
      shape_.scale_tiles.pairs = scale_tile_pairs<typename Form::Codes>(shape_.groups);
      scales_row = shape_.scale_tiles.width * (ScaleTile<typename Form::Scales>::kBytes / kScaleTileRows);
    } else {
      codes_row = shape_.stride * Form::kBytes;
    }
  });
  row_scales_row = shape_.row_scale_count * sizeof(float);
  codes_at = 0;
  high_at = codes_at + aligned(codes_row * rows);
  scales_at = high_at + aligned(high_row * rows);
  row_scales_at = scales_at + aligned(scales_row * scale_rows(rows));
  bytes = row_scales_at + aligned(row_scales_row * rows) + kBehind;
  if (rows % kMostTileRows != 0) bytes += (kMostTileRows - 1) * codes_row;
}

Planes PlaneLayout::planes(const std::byte* base) const noexcept {
  Planes p = shape_;
  p.codes = base + codes_at;
  if (high_row != 0) p.high = base + high_at;
  if (scales_row != 0) p.scales = base + scales_at;
  if (row_scales_row != 0) p.row_scales = reinterpret_cast<const float*>(base + row_scales_at);
  return p;
}

void lay_out_rows(const PackedMatrix& source, const PlaneLayout& layout, std::size_t first, std::size_t last,
                  const PlaneTargets& to) {
  quant::visit(source.format, [&]<class T>(std::type_identity<T>) {
    if constexpr (!Numeric<T>) {
      lay_out_blocks<T>(source, layout, first, last, to);
    } else if constexpr (DTypeLayout<T>::kCoded) {
      lay_out_fields<DTypeLayout<T>>(source, layout, first, last, to);
    } else {
      lay_out_values(source, layout, first, last, to);
    }
  });
  if (layout.row_scales_row != 0) lay_out_row_scales(source, layout, first, last, to.row_scales);
}

}  // namespace imago::kernels::cuda
