#include "kernels/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/checked.h"
#include "base/line_vector.h"
#include "base/parallel.h"
#include "imago/codec.h"
#include "imago/error.h"
#include "kernels/matrix_args.h"
#include "kernels/ops_table.h"
#include "quant/blocks.h"

namespace imago::kernels {

namespace {

// Tokens that one thread takes at a time. A fixed number: the split into tiles must not depend on the threads.
constexpr std::size_t kTokensPerPart = 16;

/// Returns the rows of a sequence.
std::size_t check_cache(const CacheShape& shape, std::size_t bytes, std::span<const std::uint32_t> pages) {
  const std::size_t page_bytes = shape.bytes();
  if (page_bytes == 0 || bytes % page_bytes != 0) {
    throw ShapeError(fmt::format("[attention] pages of {} heads of {} rows take {} bytes each, which {} are not",
                                 shape.heads, shape.rows, page_bytes, bytes));
  }
  if (pages.size() != 1 && (shape.rows < kTileKeys || !std::has_single_bit(shape.rows))) {
    throw ShapeError(fmt::format("[attention] several pages of {} rows; a power of two from {} on is needed",
                                 shape.rows, kTileKeys));
  }
  for (const std::uint32_t page : pages) {
    if (page < bytes / page_bytes) continue;
    throw ShapeError(fmt::format("[attention] page {} of a cache of {}", page, bytes / page_bytes));
  }
  return checked_mul(shape.rows, pages.size(), "rows of a cache");
}

/// A sequence of one page may have any number of rows.
unsigned page_shift(const CacheShape& shape, std::size_t pages) {
  return pages == 1 ? 63 : static_cast<unsigned>(std::countr_zero(shape.rows));
}

void pack(CacheType type, std::span<const float> x, std::span<std::byte> packed) {
  switch (type) {
    case CacheType::f32: std::memcpy(packed.data(), x.data(), x.size_bytes()); return;
    case CacheType::f16: encode(DType::float16, x, {}, packed); return;
    case CacheType::q8_0: encode(BlockFormat::q8_0, x, packed); return;
  }
}

/// Part `index` of `count`, from both ends by turns: later tokens of a prompt see more keys, and threads get
/// neighbours.
std::size_t from_both_ends(std::size_t index, std::size_t count) {
  return index % 2 == 0 ? index / 2 : count - 1 - index / 2;
}

}  // namespace

std::size_t CacheShape::row_bytes() const {
  switch (type) {
    case CacheType::f32: return checked_mul(head_values, sizeof(float), "row of a cache");
    case CacheType::f16: return checked_mul(head_values, sizeof(Half), "row of a cache");
    case CacheType::q8_0: break;
  }
  if (head_values % quant::Q8_0::kValues != 0) {
    throw ShapeError(fmt::format("[attention] heads of {} values are not whole blocks of q8_0", head_values));
  }
  return head_values / quant::Q8_0::kValues * sizeof(quant::Q8_0);
}

std::size_t CacheShape::head_bytes() const { return checked_mul(rows, row_bytes(), "head of a cache"); }

std::size_t CacheShape::bytes() const { return checked_mul(heads, head_bytes(), "cache"); }

void append_to_cache(const CacheShape& shape, std::span<const float> x, std::size_t first_row,
                     std::span<std::byte> cache, std::span<const std::uint32_t> pages) {
  const std::size_t rows = check_cache(shape, cache.size(), pages);
  const std::size_t token_values = checked_mul(shape.heads, shape.head_values, "token");
  if (token_values == 0 || x.size() % token_values != 0) {
    throw ShapeError(fmt::format("[attention] {} values are not whole tokens of {}", x.size(), token_values));
  }
  const std::size_t tokens = x.size() / token_values;
  if (first_row > rows || tokens > rows - first_row) {
    throw ShapeError(
        fmt::format("[attention] {} tokens do not fit from row {} on in a cache of {}", tokens, first_row, rows));
  }
  const std::size_t row_bytes = shape.row_bytes();
  const std::size_t head_bytes = shape.head_bytes();
  const std::size_t page_bytes = shape.bytes();
  const auto append = [&](std::size_t token) {
    const std::size_t row = first_row + token;
    std::byte* const to = cache.data() + pages[row / shape.rows] * page_bytes + row % shape.rows * row_bytes;
    // All heads at once: the codecs work best on many blocks.
    thread_local std::vector<std::byte> memory;
    const std::span<std::byte> packed = sized(memory, shape.heads * row_bytes);
    pack(shape.type, x.subspan(token * token_values, token_values), packed);
    for (std::size_t head = 0; head < shape.heads; ++head) {
      std::memcpy(to + head * head_bytes, packed.data() + head * row_bytes, row_bytes);
    }
  };
  parallel_rows(tokens, 1, append, kTokensPerPart);
}

KeyRange causal_range(std::size_t past, std::size_t t, std::size_t window) noexcept {
  const std::size_t end = past + t + 1;
  const std::size_t count = window == 0 ? end : std::min(window, end);
  return {end - count, count};
}

void attention(const CacheShape& shape, std::span<const std::byte> keys, std::span<const std::byte> values,
               std::span<const float> q, std::size_t heads, std::span<const KeyRange> ranges, std::span<float> y,
               const AttentionOptions& options, std::span<const std::uint32_t> pages) {
  const std::size_t rows = check_cache(shape, keys.size(), pages);
  check_cache(shape, values.size(), pages);
  if (shape.heads == 0 || heads == 0 || heads % shape.heads != 0) {
    throw ShapeError(fmt::format("[attention] {} heads cannot share {}", heads, shape.heads));
  }
  const std::size_t tokens = ranges.size();
  const std::size_t token_values = checked_mul(heads, shape.head_values, "token");
  if (q.size() != checked_mul(tokens, token_values, "queries") || y.size() != q.size()) {
    throw ShapeError(fmt::format("[attention] {} tokens of {} values do not fit queries of {} and results of {}",
                                 tokens, token_values, q.size(), y.size()));
  }
  for (const KeyRange range : ranges) {
    if (range.first > rows || range.count > rows - range.first) {
      throw ShapeError(
          fmt::format("[attention] {} keys from row {} on in a cache of {}", range.count, range.first, rows));
    }
  }
  if (!options.sinks.empty() && options.sinks.size() != heads) {
    throw ShapeError(fmt::format("[attention] {} sinks for {} heads", options.sinks.size(), heads));
  }
  if (!(options.cap >= 0)) throw UsageError(fmt::format("[attention] a cap of {} is negative", options.cap));
  if (tokens == 0) return;

  const bool by_tiles = options.fast && (options.many || tokens >= kTileBatch);
  const CpuFeatures features = allowed_cpu_features() & (by_tiles ? ~kNoFeatures : ~kAmx);
  const OpKernel<AttentionArgs>& kernel = choose_op<AttentionArgs>(features);
  const std::size_t row_bytes = shape.row_bytes();
  const std::size_t head_bytes = shape.head_bytes();
  const std::size_t page_bytes = shape.bytes();
  const std::size_t group = heads / shape.heads;
  const std::size_t parts = (tokens - 1) / kTokensPerPart + 1;  // per head
  // Few tokens of many heads that share a key head leave threads idle, so their heads are shared out too.
  const std::size_t together = parts == 1 ? std::min(group, kTileQueries) : group;
  const std::size_t shares = (group + together - 1) / together;
  const auto attend = [&](std::size_t i) {
    thread_local std::vector<ScratchLine> memory;
    const std::size_t head = i / shares / parts, share = i % shares * together;
    const std::size_t token = from_both_ends(i / shares % parts, parts) * kTokensPerPart;
    const std::size_t first_query = head * group + share;
    const std::size_t offset = token * token_values + first_query * shape.head_values;
    kernel.run({.q = q.data() + offset,
                .y = y.data() + offset,
                .tokens = std::min(kTokensPerPart, tokens - token),
                .group = std::min(together, group - share),
                .head_values = shape.head_values,
                .token_stride = token_values,
                .type = shape.type,
                .keys = keys.data() + head * head_bytes,
                .values = values.data() + head * head_bytes,
                .pages = pages.data(),
                .page_bytes = page_bytes,
                .row_bytes = row_bytes,
                .page_shift = page_shift(shape, pages.size()),
                .ranges = ranges.data() + token,
                .scale = options.scale,
                .cap = options.cap,
                .sinks = options.sinks.empty() ? nullptr : options.sinks.data() + first_query,
                .scratch = sized(memory, attention_scratch_lines(shape.head_values)).data()});
  };
  parallel_rows(shape.heads * parts * shares, 1, attend, 1);
}

}  // namespace imago::kernels
