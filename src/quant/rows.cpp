// Instantiates the algorithms with one lane and offers them by name.

#include "quant/rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "imago/codec.h"
#include "imago/error.h"
#include "quant/block_format.h"
#include "quant/expanded.h"
#include "quant/int8_scale.h"
#include "quant/lanes_scalar.h"

namespace imago {

namespace quant {

#include "quant/blocks.inl.h"

EncodeRows row_encoder(BlockFormat format) noexcept {
  return visit(format, []<class Block>(std::type_identity<Block>) -> EncodeRows { return &encode_blocks<Block>; });
}

DecodeRows row_decoder(BlockFormat format) noexcept {
  return visit(format, []<class Block>(std::type_identity<Block>) -> DecodeRows { return &decode_blocks<Block>; });
}

BlockParts block_parts(BlockFormat format) noexcept {
  return visit(format, []<class Block>(std::type_identity<Block>) -> BlockParts {
    const auto expand = [](const std::byte* block, Expanded& out) noexcept {
      BlockCodec<Block>::expand(*reinterpret_cast<const Block*>(block), out);  // of alignment 1, made of bytes
    };
    return {BlockCodec<Block>::kGroup, BlockCodec<Block>::kHasOffset, expand};
  });
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
  using Codec = BlockCodec<Block>;
  constexpr int kRun = std::min(Codec::kGroup, Int8Block::kValues);
  Expanded e;
  Codec::expand(block, e);
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
    sum += static_cast<double>(e.scales[begin / Codec::kGroup]) * scale * products;
    if (Codec::kHasOffset) sum -= static_cast<double>(e.offsets[begin / Codec::kGroup]) * scale * plain;
  }
  return sum;
}

/// Σ over the blocks of a row; `stride` elements of x belong to each block.
template <class X>
float dot_blocks(BlockFormat format, std::span<const std::byte> blocks, std::span<const X> x, std::size_t stride) {
  return visit(format, [&]<class Block>(std::type_identity<Block>) {
    const Block* typed = reinterpret_cast<const Block*>(blocks.data());  // of alignment 1, made of bytes
    double sum = 0;
    for (std::size_t b = 0; b < blocks.size() / sizeof(Block); ++b) sum += dot_block(typed[b], x.data() + b * stride);
    return static_cast<float>(sum);
  });
}

}  // namespace

}  // namespace quant

namespace {

void check_row(BlockFormat format, std::size_t values, std::size_t bytes) {
  const std::size_t wanted = packed_bytes(format, values);
  if (bytes != wanted) {
    throw ShapeError(
        fmt::format("a row of {} weights in {} takes {} bytes, not {}", values, name(format), wanted, bytes));
  }
}

}  // namespace

void quantize_row(BlockFormat format, std::span<const float> row, std::span<std::byte> blocks,
                  std::span<const float> importance) {
  check_row(format, row.size(), blocks.size());
  quant::check_importance(format, row.size(), importance);
  quant::row_encoder(format)(row.data(), row.size(), importance.empty() ? nullptr : importance.data(),
                             importance.size(), 0, blocks.data());
}

void dequantize_row(BlockFormat format, std::span<const std::byte> blocks, std::span<float> row) {
  check_row(format, row.size(), blocks.size());
  quant::row_decoder(format)(blocks.data(), row.size(), row.data());
}

float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const float> x) {
  check_row(format, x.size(), blocks.size());
  return quant::dot_blocks(format, blocks, x, static_cast<std::size_t>(info(format).values));
}

float dot_row(BlockFormat format, std::span<const std::byte> blocks, std::span<const Int8Block> x) {
  check_row(format, x.size() * Int8Block::kValues, blocks.size());
  return quant::dot_blocks(format, blocks, x, static_cast<std::size_t>(info(format).values) / Int8Block::kValues);
}

std::vector<Int8Block> quantize_activations(std::span<const float> x) {
  std::vector<Int8Block> blocks((x.size() + Int8Block::kValues - 1) / Int8Block::kValues);
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    const std::span<const float> part =
        x.subspan(b * Int8Block::kValues)
            .first(std::min<std::size_t>(Int8Block::kValues, x.size() - b * Int8Block::kValues));
    Int8Block& block = blocks[b];
    block = {};
    block.scale = quant::quantize_to_int8(part, block.q);
    for (const std::int8_t code : block.q) block.sum += code;
  }
  return blocks;
}

}  // namespace imago
