#include "quant/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/codec.h"
#include "imago/error.h"
#include "quant/blocks.h"
#include "quant/scheme.h"

namespace imago {

namespace quant {

BlockParts block_parts(BlockFormat format) noexcept {
  return visit(format, []<class Block>(std::type_identity<Block>) -> BlockParts {
    const auto take_apart = [](const std::byte* block, Expanded& out) noexcept {
      expand(*reinterpret_cast<const Block*>(block), out);  // any address will do: blocks are made of bytes
    };
    return {Block::kGroup, Block::kHasOffset, take_apart};
  });
}

void check_importance(Format format, std::size_t count, std::span<const float> importance) {
  if (importance.empty()) return;
  const std::size_t values = static_cast<std::size_t>(format.block_values());
  if (importance.size() % values != 0 || count % importance.size() != 0) {
    throw ShapeError(fmt::format("an importance of {} columns does not fit {} weights in blocks of {}",
                                 importance.size(), count, values));
  }
  const auto bad = std::find_if(importance.begin(), importance.end(),
                                [](float factor) { return !(factor >= 0) || !std::isfinite(factor); });
  if (bad != importance.end()) {
    throw UsageError(fmt::format("the importance of column {} is {}; it must be finite and not negative",
                                 bad - importance.begin(), *bad));
  }
}

namespace {

template <class Block>
double dot_block(const Block& block, const float* x) noexcept {
  float values[Block::kValues];
  decode_block(block, values);
  double sum = 0;
  for (int i = 0; i < Block::kValues; ++i) sum += static_cast<double>(values[i]) * static_cast<double>(x[i]);
  return sum;
}

/// Integer products within the runs where both the weight's scale and the activation's are the same.
template <class Block>
double dot_block(const Block& block, const Int8Block* x) noexcept {
  constexpr int kRun = std::min(Block::kGroup, Int8Block::kValues);
  Expanded e;
  expand(block, e);
  double sum = 0;
  for (int begin = 0; begin < Block::kValues; begin += kRun) {
    const Int8Block& activations = x[begin / Int8Block::kValues];
    std::int32_t products = 0;
    std::int32_t plain = 0;
    for (int i = 0; i < kRun; ++i) {
      const std::int32_t a = activations.q[begin % Int8Block::kValues + i];
      products += e.codes[begin + i] * a;
      plain += a;
    }
    const double scale = activations.scale;
    sum += static_cast<double>(e.scales[begin / Block::kGroup]) * scale * products;
    if (Block::kHasOffset) sum -= static_cast<double>(e.offsets[begin / Block::kGroup]) * scale * plain;
  }
  return sum;
}

/// Σ over the blocks of a row; `stride` elements of x belong to each block.
template <class X>
float dot_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<const X> x, std::size_t stride) {
  return visit(format, [&]<class Block>(std::type_identity<Block>) {
    const Block* typed = reinterpret_cast<const Block*>(blocks.data());  // any address will do
    double sum = 0;
    for (std::size_t b = 0; b < blocks.size() / sizeof(Block); ++b) sum += dot_block(typed[b], x.data() + b * stride);
    return static_cast<float>(sum);
  });
}

}  // namespace

}  // namespace quant

void quantize_row(BlockFormat format, std::span<const float> row, std::span<std::byte> blocks,
                  std::span<const float> importance) {
  check_packed_size(format, row.size(), blocks.size());
  quant::check_importance(format, row.size(), importance);
  quant::visit(format, [&]<class Block>(std::type_identity<Block>) {
    quant::encode_blocks<Block>(row.data(), row.size(), importance.empty() ? nullptr : importance.data(),
                                importance.size(), 0, blocks.data());
  });
}

void dequantize_row(BlockFormat format, std::span<const std::byte> blocks, std::span<float> row) {
  check_packed_size(format, row.size(), blocks.size());
  quant::visit(format, [&]<class Block>(std::type_identity<Block>) {
    quant::decode_blocks<Block>(blocks.data(), row.size(), row.data());
  });
}

float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const float> x) {
  check_packed_size(format, x.size(), blocks.size());
  return quant::dot_blocks(format, blocks, x, static_cast<std::size_t>(info(format).values));
}

float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const Int8Block> x) {
  check_packed_size(format, x.size() * Int8Block::kValues, blocks.size());
  return quant::dot_blocks(format, blocks, x, static_cast<std::size_t>(info(format).values) / Int8Block::kValues);
}

}  // namespace imago
