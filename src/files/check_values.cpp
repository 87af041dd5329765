// Weights and scales that are not finite, and codes that stand for nothing: one pass over the bytes of a tensor.
//
// Exponents are compared as integers. The loops have no branch and no call inside a chunk, so that compilers turn them
// into vector code; only a chunk in which something is wrong is counted.

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <limits>
#include <mutex>

#include "base/parallel.h"
#include "files/published.h"
#include "files/tensor_file.h"
#include "imago/error.h"
#include "quant/blocks.h"

namespace imago::files {

namespace {

constexpr std::size_t kChunk = 4096;         // units that are tested between two branches
constexpr std::size_t kGrain = 16 * kChunk;  // units per part of the pool: some 10 µs

/// What was found: how many units are wrong, and the first of them.
struct Findings {
  std::size_t count = 0;
  std::size_t first = std::numeric_limits<std::size_t>::max();
};

/// Applies `wrong` (0: right; no branches inside) to units of `unit_bytes` at any address.
template <class Unit, class Wrong>
Findings scan(std::span<const std::byte> bytes, Wrong wrong) {
  const auto load = [&](std::size_t i) {
    Unit unit;
    std::memcpy(&unit, bytes.data() + i * sizeof(Unit), sizeof(Unit));
    return unit;
  };
  Findings all;
  std::mutex mutex;
  parallel_for_dynamic(bytes.size() / sizeof(Unit), kGrain, [&](std::size_t begin, std::size_t end) {
    Findings part;
    for (std::size_t chunk = begin; chunk < end; chunk += kChunk) {
      const std::size_t chunk_end = std::min(chunk + kChunk, end);
      decltype(wrong(load(0))) any = 0;
      for (std::size_t i = chunk; i < chunk_end; ++i) any |= wrong(load(i));
      if (any == 0) continue;
      for (std::size_t i = chunk; i < chunk_end; ++i) {
        if (wrong(load(i)) == 0) continue;
        part.first = std::min(part.first, i);
        ++part.count;
      }
    }
    const std::lock_guard lock(mutex);
    all.count += part.count;
    all.first = std::min(all.first, part.first);
  });
  return all;
}

/// All ones if every bit of `mask` is set in `word`: the exponent of what is not finite.
template <class Word>
Word filled(Word word, Word mask) {
  return static_cast<Word>((word & mask) == mask ? ~Word{0} : Word{0});
}

// ---- blocks

std::uint16_t wrong_half(quant::PackedHalf half) {
  return filled<std::uint16_t>(static_cast<std::uint16_t>(half.bytes[0] | half.bytes[1] << 8), 0x7C00);
}

std::uint32_t wrong_single(quant::PackedFloat single) {
  std::uint32_t word = 0;
  std::memcpy(&word, single.bytes, sizeof word);
  return filled<std::uint32_t>(word, 0x7F800000);
}

/// Not 0 if a scale of the block is not finite, or not what its kind allows.
template <class Block>
unsigned wrong_scales(const Block& block) {
  using quant::ScaleKind;
  if constexpr (Block::kScales == ScaleKind::single) {
    return wrong_single(block.scale);
  } else if constexpr (Block::kScales == ScaleKind::exponent) {
    return block.exponent == 0xFF;
  } else if constexpr (Block::kScales == ScaleKind::small_float) {
    unsigned wrong = 0;
    for (const std::uint8_t scale : block.sub_scales) wrong |= scale >= 0x7F;  // the sign must be 0, and 0x7F is NaN
    return wrong;
  } else if constexpr (Block::kHasOffset) {
    return wrong_half(block.scale) | wrong_half(block.min);
  } else if constexpr (requires { block.scale_code(); }) {  // its bits are not beside each other
    return filled<std::uint16_t>(block.scale_code(), 0x7C00);
  } else {
    return wrong_half(block.scale);
  }
}

// ---- reports

[[noreturn]] void report(const StoredTensor& tensor, const Findings& found, std::size_t unit_bytes,
                         std::string_view units, std::string_view problem) {
  throw FormatError(tensor.file, tensor.offset + found.first * unit_bytes,
                    fmt::format("tensor '{}' ({}): {} of its {} {} {}, the first at index {}; use --allow-nonfinite to "
                                "convert anyway",
                                tensor.name, tensor.type, found.count, tensor.bytes.size() / unit_bytes, units, problem,
                                found.first));
}

template <class Unit, class Wrong>
void require_right(const StoredTensor& tensor, std::string_view units, std::string_view problem, Wrong wrong) {
  const Findings found = scan<Unit>(tensor.bytes, wrong);
  if (found.count != 0) report(tensor, found, sizeof(Unit), units, problem);
}

constexpr std::string_view kNotFinite = "are not finite (NaN or infinite)";

/// Words with an exponent of `mask`.
template <class Word>
void check_floats(const StoredTensor& tensor, Word mask) {
  require_right<Word>(tensor, "weights", kNotFinite, [mask](Word word) { return filled(word, mask); });
}

template <class Block>
void check_blocks(const StoredTensor& tensor) {
  require_right<Block>(tensor, "blocks", "have a scale that is not finite or not allowed",
                       [](const Block& block) { return wrong_scales(block); });
  if constexpr (requires(const Block& block) { block.unused_codes(); }) {
    require_right<Block>(tensor, "blocks", "hold the ternary code 11, which stands for no value",
                         [](const Block& block) { return block.unused_codes(); });
  }
}

/// The high bit of a pair set, the low bit clear. Fields are counted, not bytes.
void check_ternary(const StoredTensor& tensor) {
  const auto holes = [](std::uint8_t byte) { return static_cast<std::uint8_t>(byte & 0xAA & ~(byte << 1)); };
  Findings found = scan<std::uint8_t>(tensor.bytes, holes);
  if (found.count == 0) return;
  std::size_t first = 4 * found.first;
  for (unsigned bits = holes(std::to_integer<std::uint8_t>(tensor.bytes[found.first])); (bits & 0x80) == 0;
       bits <<= 2) {
    ++first;
  }
  std::size_t count = 0;
  for (std::size_t i = found.first; i < tensor.bytes.size(); ++i) {
    count += static_cast<std::size_t>(std::popcount(holes(std::to_integer<std::uint8_t>(tensor.bytes[i]))));
  }
  throw FormatError(tensor.file, tensor.offset + found.first,
                    fmt::format("tensor '{}' ({}): {} of its {} weights have the code 10, which stands for no value, "
                                "the first at index {}; use --allow-nonfinite to convert anyway",
                                tensor.name, tensor.type, count, tensor.shape.elements(), first));
}

/// Weights fill a byte from the top, so what is unused is at the bottom of the last one.
void check_padding(const StoredTensor& tensor) {
  const auto width = static_cast<std::size_t>(bits(tensor.format->dtype()));
  const std::size_t used = tensor.shape.elements() * width % 8;
  if (tensor.bytes.empty() || used == 0) return;
  const auto last = std::to_integer<unsigned>(tensor.bytes.back());
  if ((last & (0xFFu >> used)) == 0) return;
  throw FormatError(tensor.file, tensor.offset + tensor.bytes.size() - 1,
                    fmt::format("tensor '{}' ({}): the {} bits after the last of {} weights must be 0; use "
                                "--allow-nonfinite to convert anyway",
                                tensor.name, tensor.type, 8 - used, tensor.shape.elements()));
}

void check_dtype(const StoredTensor& tensor) {
  switch (tensor.format->dtype()) {
    case DType::float64: return check_floats<std::uint64_t>(tensor, 0x7FF0000000000000);
    case DType::float32: return check_floats<std::uint32_t>(tensor, 0x7F800000);
    case DType::float16: return check_floats<std::uint16_t>(tensor, 0x7C00);
    case DType::bfloat16: return check_floats<std::uint16_t>(tensor, 0x7F80);
    case DType::fp8e4m3: return check_floats<std::uint8_t>(tensor, 0x7F);
    case DType::fp8e5m2: return check_floats<std::uint8_t>(tensor, 0x7C);
    case DType::ternary: check_ternary(tensor); return check_padding(tensor);
    case DType::int4:
    case DType::uint4:
    case DType::fp4:
    case DType::int2:
    case DType::uint2:
    case DType::binary: return check_padding(tensor);
    case DType::int64:
    case DType::int32:
    case DType::int16:
    case DType::int8:
    case DType::uint64:
    case DType::uint32:
    case DType::uint16:
    case DType::uint8: break;  // every code is a value
  }
}

}  // namespace

void check_values(const StoredTensor& tensor) {
  if (tensor.published) {
    tensor.published->check();
  } else if (tensor.format) {
    quant::visit(*tensor.format, [&]<class T>(std::type_identity<T>) {
      if constexpr (Numeric<T>) {
        check_dtype(tensor);
      } else {
        check_blocks<T>(tensor);
      }
    });
  } else if (tensor.safetensors_type == SafetensorsType::f8_e8m0) {
    check_floats<std::uint8_t>(tensor, 0xFF);
  } else if (tensor.safetensors_type == SafetensorsType::boolean) {
    require_right<std::uint8_t>(tensor, "weights", "are neither 0 nor 1",
                                [](std::uint8_t byte) { return static_cast<std::uint8_t>(byte & 0xFE); });
  }
}

}  // namespace imago::files
