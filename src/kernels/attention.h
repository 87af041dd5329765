#pragma once

// Attention over a cache of keys and values. The functions check their sizes (ShapeError, UsageError) and run on the
// pool; results do not depend on the number of threads.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/ops_args.h"

namespace imago::kernels {

/// How the keys (or the values) of one layer lie in a page: [heads][rows][head_values], rows packed in `type`. A row
/// holds one token; the rows of a head are contiguous, so that a head is read as one stream. Any alignment but that of
/// float for f32. A sequence has one page or several, anywhere in a memory of pages: its row u is row u % rows of page
/// number pages[u / rows].
struct CacheShape {
  CacheType type = CacheType::f16;
  std::size_t heads = 0;        ///< of keys and values
  std::size_t rows = 0;         ///< tokens of a page; a power of two from kTileKeys on where sequences have several
  std::size_t head_values = 0;  ///< a multiple of 32 for q8_0
  bool has_values = true;       ///< else there are keys alone

  /// Throw ShapeError if head_values does not fit the type, or if sizes overflow.
  std::size_t row_bytes() const;
  std::size_t head_bytes() const;
  std::size_t bytes() const;
};

/// The pages of a sequence that is alone in its memory.
inline constexpr std::array<std::uint32_t, 1> kOnePage = {0};

/// Packs keys or values of consecutive tokens into rows first_row, first_row + 1, …: x is [tokens][heads][head_values].
/// float16 is rounded to nearest even, q8_0 as ggml does; the same bytes on every machine.
void append_to_cache(const CacheShape& shape, std::span<const float> x, std::size_t first_row,
                     std::span<std::byte> cache, std::span<const std::uint32_t> pages = kOnePage);

struct AttentionOptions {
  float scale = 1;  ///< on q · key, usually 1 / sqrt(head_values)
  float cap = 0;    ///< 0: none, else scores become cap · tanh(score / cap)
  /// Many tokens may be multiplied by tiles of bfloat16 where the processor has them: keys, values and weights lose all
  /// but 8 bits.
  bool fast = false;
  bool many = false;  ///< few tokens are treated likewise
  /// One score per query head that takes part in the softmax of its tokens and adds no value; empty: none.
  std::span<const float> sinks = {};
};

/// The keys that token t of `tokens` sees when all of them and `past` tokens before them are in the cache: those up to
/// itself, the last `window` of them if that is not 0.
KeyRange causal_range(std::size_t past, std::size_t t, std::size_t window = 0) noexcept;

/// y[t][h] = Σ softmax(scores)(u) · value(u) over the keys u in ranges[t], with head h of `heads` reading head
/// h / (heads / shape.heads) of the cache. q and y are [tokens][heads][head_values] and may be the same. A token
/// without keys gives zeros. The work is split by heads and groups of 16 tokens, that of few tokens also by 16 queries.
void attention(const CacheShape& shape, std::span<const std::byte> keys, std::span<const std::byte> values,
               std::span<const float> q, std::size_t heads, std::span<const KeyRange> ranges, std::span<float> y,
               const AttentionOptions& options, std::span<const std::uint32_t> pages = kOnePage);

/// Lines of scratch that AttentionArgs::scratch must have.
constexpr std::size_t attention_scratch_lines(std::size_t head_values) noexcept {
  const std::size_t width = (head_values + 15) / 16;  // lines of 16 floats; kernels round up to their vectors
  const std::size_t lines = width * (kTileKeys + 2 * kTileQueries) + kTileQueries * kTileKeys / 16;
  // By tiles of 16 lines: 20 for every 32 values, 4 for scores and weights, and two rows.
  const std::size_t steps = (head_values + 31) / 32;
  return std::max(lines, (20 * steps + 4) * 16 + 4 * steps);
}

}  // namespace imago::kernels
