// Latent attention on the CPU. Queries are multiplied into the space of the compressed keys, so that attention reads
// the cache as it is: one key head that all query heads share, whose rows are values, too.

#include <algorithm>

#include "backend/cpu/pass.h"
#include "base/cpu.h"
#include "base/parallel.h"
#include "kernels/ops_table.h"

namespace imago::backend {

namespace {

/// [tokens][heads][..] at `from` + head · from_apart to and from [heads][tokens][cols].
struct HeadRows {
  std::size_t tokens, heads, cols;

  void gather(const float* from, std::size_t token_apart, std::size_t head_apart, float* to) const {
    parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          std::copy_n(from + t * token_apart + h * head_apart, cols, to + (h * tokens + t) * cols);
        }
      }
    });
  }
  void scatter(const float* from, float* to, std::size_t token_apart, std::size_t head_apart) const {
    parallel_for(tokens, kTokensToCopy, [&](std::size_t begin, std::size_t end) {
      for (std::size_t t = begin; t < end; ++t) {
        for (std::size_t h = 0; h < heads; ++h) {
          std::copy_n(from + (h * tokens + t) * cols, cols, to + t * token_apart + h * head_apart);
        }
      }
    });
  }
};

}  // namespace

void CpuPass::multiply_heads(const WeightKey& weight, std::size_t heads, std::size_t tokens, std::size_t cols,
                             std::size_t rows, std::span<const float> x, std::span<float> y) {
  const Product step{.matrix = weight};
  std::vector<kernels::Product>& products = work_.products;
  products.clear();
  for (std::size_t head = 0; head < heads; ++head) {
    show({&step, 1}, head, x.subspan(head * tokens * cols, tokens * cols), tokens);
    products.push_back(product_of(step, head, y.subspan(head * tokens * rows, tokens * rows), {head * tokens, tokens},
                                  singles_of(read_)));
  }
  kernels::multiply_all(products, x, heads * tokens);
}

void CpuPass::run(const LatentAttend& step) {
  const std::size_t heads = step.heads, row = step.rank + step.rotary, query = step.plain + step.rotary;
  const std::size_t reads = read_.count;
  const std::span<float> q = values(Slot::query), rows = values(Slot::key);
  const std::span<const float> norm = vector(step.norm);
  const auto& turn = kernels::choose_op<kernels::RopeArgs>(allowed_cpu_features());
  const auto rotate = [&](float* x, std::size_t count, std::size_t apart, std::size_t position) {
    turn.run({.x = x,
              .heads = count,
              .head_values = apart,
              .rotary = step.rotary,
              .cos_sin = ropes_[0]->at(position).data(),
              .pairs = step.pairs});
  };

  std::size_t first = 0;
  for (const Segment& segment : segments_) {
    auto& cache = static_cast<CpuCache&>(*segment.cache);
    for (std::size_t t = 0; t < segment.tokens; ++t) {
      const std::span<float> own = rows.subspan((first + t) * row, row);
      kernels::rms_norm(own.first(step.rank), norm, step.eps, own.first(step.rank));
      rotate(own.data() + step.rank, 1, step.rotary, segment.past + t);
    }
    kernels::append_to_cache(cache.page(block_), rows.subspan(first * row, segment.tokens * row), segment.past,
                             cache.keys(block_), segment.pages);
    first += segment.tokens;
  }
  if (reads == 0) return;

  const std::span<float> latent = sized(work_.latent, reads * heads * row);
  const std::span<float> narrow = sized(work_.gathered, reads * heads * std::max(step.plain, step.rank));
  const std::span<float> wide = sized(work_.results, reads * heads * std::max(step.rank, step.values));
  HeadRows{reads, heads, step.plain}.gather(q.data(), heads * query, query, narrow.data());
  multiply_heads(step.key_up, heads, reads, step.plain, step.rank, narrow.first(reads * heads * step.plain), wide);
  HeadRows{reads, heads, step.rank}.scatter(wide.data(), latent.data(), heads * row, row);

  first = 0;
  for (const Segment& segment : segments_) {
    const std::size_t begin = std::clamp(read_.first, first, first + segment.tokens);
    const std::size_t end = std::clamp(read_.first + read_.count, begin, first + segment.tokens);
    const std::size_t place = begin == end ? 0 : begin - read_.first, count = end - begin;
    const std::size_t position = segment.past + (begin - first);
    for (std::size_t t = 0; t < count; ++t) {
      float* const own = q.data() + (place + t) * heads * query + step.plain;
      rotate(own, heads, query, position + t);
      float* const to = latent.data() + (place + t) * heads * row + step.rank;
      for (std::size_t h = 0; h < heads; ++h) std::copy_n(own + h * query, step.rotary, to + h * row);
    }
    const std::span<kernels::KeyRange> seen = sized(work_.ranges, reads).subspan(place, count);
    for (std::size_t t = 0; t < count; ++t) seen[t] = kernels::causal_range(position, t);
    const std::span<float> queries = latent.subspan(place * heads * row, count * heads * row);
    auto& cache = static_cast<CpuCache&>(*segment.cache);
    kernels::attention(cache.page(block_), cache.keys(block_), cache.keys(block_), queries, heads, seen, queries,
                       {.scale = step.scale}, segment.pages);
    first += segment.tokens;
  }

  HeadRows{reads, heads, step.rank}.gather(latent.data(), heads * row, row, narrow.data());
  multiply_heads(step.value_up, heads, reads, step.rank, step.values, narrow.first(reads * heads * step.rank), wide);
  const std::span<float> out = values(Slot::attended);
  HeadRows{reads, heads, step.values}.scatter(wide.data(), out.data(), heads * step.values, step.values);
}

}  // namespace imago::backend
