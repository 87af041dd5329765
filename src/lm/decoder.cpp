#include "lm/decoder.h"

#include <array>

#include "base/parallel.h"
#include "kernels/attention.h"

namespace imago::lm {

namespace {

using kernels::Product;
using models::NormKind;
using models::Role;
using models::Traits;

/// y = norm(x), or a copy where there is none.
void normalize(const Traits& traits, const Norm& norm, std::span<const float> x, std::span<float> y) {
  const float eps = static_cast<float>(traits.norm_eps);
  if (norm.weight.empty()) {
    if (x.data() != y.data()) kernels::copy(x, y);
  } else if (traits.norm == NormKind::rms) {
    kernels::rms_norm(x, norm.weight, eps, y);
  } else {
    kernels::layer_norm(x, norm.weight, norm.bias, eps, y);
  }
}

/// Adds a branch to the stream, through its norm if it has one.
void add_branch(const Traits& traits, const Norm& post_norm, std::span<float> branch, std::span<float> x) {
  if (!post_norm.weight.empty()) normalize(traits, post_norm, branch, branch);
  kernels::add_scaled(branch, traits.residual_scale, x);
}

void embed(const DecoderWeights& weights, std::span<const TokenId> ids, std::span<const Segment> segments,
           std::span<float> x) {
  const std::size_t width = weights.traits.width;
  weights.embedding.look_up(ids, x);
  if (weights.traits.embedding_scale != 1) kernels::scale(x, weights.traits.embedding_scale);
  if (weights.positions.empty()) return;
  std::size_t first = 0;
  for (const Segment& segment : segments) {
    kernels::add(std::span(weights.positions).subspan(segment.past * width, segment.tokens * width),
                 x.subspan(first * width, segment.tokens * width));
    first += segment.tokens;
  }
}

/// Attention of one sequence: its keys and values into the cache, its queries over it. Results replace the queries.
struct SegmentAttention {
  const Traits& traits;
  std::size_t block;
  const kernels::RopeTable* rope;
  std::span<float> q, k, v;             // of the whole batch; q only of tokens that are read
  std::span<kernels::KeyRange> ranges;  // like q
  bool fast;                            // results are rounded to int8 or bfloat16 next

  /// Tokens of the batch from `first` on; `read` counts from there.
  void run(const Segment& segment, std::size_t first, RowRange read) const {
    const std::size_t query_values = traits.heads * traits.head_values;
    const std::size_t key_values = traits.kv_heads * traits.head_values;
    const std::span<float> queries = q.subspan(first * query_values, read.count * query_values);
    const std::span<float> keys = k.subspan(first * key_values, segment.tokens * key_values);
    const std::span<float> values = v.subspan(first * key_values, segment.tokens * key_values);
    if (rope != nullptr && traits.rope_in_block[block]) {
      kernels::rope(queries, traits.heads, traits.head_values, *rope, segment.past + read.first, traits.rope_pairs);
      kernels::rope(keys, traits.kv_heads, traits.head_values, *rope, segment.past, traits.rope_pairs);
    }
    KvCache& cache = *segment.cache;
    kernels::append_to_cache(cache.shape, keys, segment.past, cache.keys[block].host());
    kernels::append_to_cache(cache.shape, values, segment.past, cache.values[block].host());
    if (read.count == 0) return;
    const std::span<kernels::KeyRange> seen = ranges.subspan(first, read.count);
    for (std::size_t t = 0; t < read.count; ++t) {
      seen[t] = kernels::causal_range(segment.past, read.first + t, traits.block_window[block]);
    }
    kernels::attention(cache.shape, cache.keys[block].host(), cache.values[block].host(), queries, traits.heads, seen,
                       queries, {.scale = traits.attention_scale, .cap = traits.attention_cap, .fast = fast});
  }
};

/// Fills the caches with all tokens; work.branch gets the results of those that are read.
void run_attention(const Traits& traits, const Block& block, std::size_t index, std::span<const Segment> segments,
                   const kernels::RopeTable* rope, std::size_t tokens, RowRange read, Workspace& work) {
  const std::span<const float> in = std::span(work.normed).first(tokens * traits.width);
  const std::span<float> q = sized(work.q, read.count * traits.heads * traits.head_values);
  const std::span<float> k = sized(work.k, tokens * traits.kv_heads * traits.head_values);
  const std::span<float> v = sized(work.v, k.size());
  const auto product = [](const Projection& projection, std::span<float> y, RowRange rows) {
    return Product{.matrix = &*projection.matrix,
                   .y = y,
                   .first_token = rows.first,
                   .tokens = rows.count,
                   .epilogue = {.bias = projection.bias}};
  };
  const std::array products = {product(block.query, q, read), product(block.key, k, {0, tokens}),
                               product(block.value, v, {0, tokens})};
  work.show({Role::query, Role::key, Role::value}, index, in, tokens);
  kernels::multiply_all(products, in, tokens);
  const float eps = static_cast<float>(traits.norm_eps);
  if (!block.query_norm.empty()) kernels::rms_norm(q, block.query_norm, eps, q);  // by head or by row: by its length
  if (!block.key_norm.empty()) kernels::rms_norm(k, block.key_norm, eps, k);

  const bool fast = block.attention_output.matrix->kernel().arithmetic == kernels::Arithmetic::fast;
  const SegmentAttention attention{traits, index, rope, q, k, v, sized(work.ranges, read.count), fast};
  if (segments.size() == 1) {
    attention.run(segments.front(), 0, read);
  } else {  // one token of each sequence, as append_together gives them: side by side
    parallel_for_dynamic(segments.size(), 1, [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) attention.run(segments[i], i, {0, 1});
    });
  }
  if (read.count == 0) return;
  work.show({Role::attention_output}, index, q, read.count);
  block.attention_output.matrix->multiply(q, read.count, sized(work.branch, read.count * traits.width),
                                          {.bias = block.attention_output.bias});
}

/// From work.normed into work.branch.
void run_feed_forward(const Traits& traits, const Block& block, std::size_t index, std::size_t tokens,
                      Workspace& work) {
  const std::span<const float> in = std::span(work.normed).first(tokens * traits.width);
  if (traits.experts != 0) return run_experts(traits, block, index, in, tokens, work);
  const FeedForward& layer = block.feed_forwards.front();
  const std::span<float> hidden = sized(work.gate, tokens * traits.feed_forward);
  const std::span<float> up = traits.gated ? sized(work.up, hidden.size()) : std::span<float>();
  const Product product = feed_forward_product(traits, layer, hidden, up, 0, tokens);
  if (traits.gated) {
    work.show({Role::gate, Role::up}, index, in, tokens);
  } else {
    work.show({Role::up}, index, in, tokens);
  }
  kernels::multiply_all({&product, 1}, in, tokens);
  work.show({Role::down}, index, hidden, tokens);
  layer.down.matrix->multiply(hidden, tokens, sized(work.branch, in.size()), {.bias = layer.down.bias});
}

void run_block(const DecoderWeights& weights, std::size_t index, std::size_t tokens, RowRange read,
               std::span<const Segment> segments, const kernels::RopeTable* rope, Workspace& work) {
  const Traits& traits = weights.traits;
  const Block& block = weights.blocks[index];
  const std::span<float> all = std::span(work.x).first(tokens * traits.width);
  normalize(traits, block.attention_norm, all, sized(work.normed, all.size()));
  run_attention(traits, block, index, segments, rope, tokens, read, work);
  if (read.count == 0) return;
  const std::span<float> x = all.subspan(read.first * traits.width, read.count * traits.width);
  const std::span<float> branch = std::span(work.branch).first(x.size());
  add_branch(traits, block.attention_post_norm, branch, x);
  normalize(traits, block.feed_forward_norm, x, sized(work.normed, x.size()));
  run_feed_forward(traits, block, index, read.count, work);
  add_branch(traits, block.feed_forward_post_norm, branch, x);
}

}  // namespace

Product feed_forward_product(const Traits& traits, const FeedForward& layer, std::span<float> y, std::span<float> up_y,
                             std::size_t first_token, std::size_t tokens) {
  Product product{.matrix = &*(traits.gated ? layer.gate : layer.up).matrix,
                  .y = y,
                  .first_token = first_token,
                  .tokens = tokens,
                  .epilogue = {.bias = {}, .activation = traits.activation}};
  if (traits.gated) {
    product.up = &*layer.up.matrix;
    product.up_y = up_y;
  } else {
    product.epilogue.bias = layer.up.bias;
  }
  return product;
}

void run_blocks(const DecoderWeights& weights, std::span<const TokenId> ids, RowRange read,
                std::span<const Segment> segments, const kernels::RopeTable* rope, Workspace& work) {
  const std::size_t last = weights.blocks.size() - 1;
  embed_tokens(weights, ids, segments, work);
  run_blocks(weights, {0, last}, ids.size(), segments, rope, work);
  run_block(weights, last, ids.size(), read, segments, rope, work);
}

void embed_tokens(const DecoderWeights& weights, std::span<const TokenId> ids, std::span<const Segment> segments,
                  Workspace& work) {
  embed(weights, ids, segments, sized(work.x, ids.size() * weights.traits.width));
}

void run_blocks(const DecoderWeights& weights, BlockRange range, std::size_t tokens, std::span<const Segment> segments,
                const kernels::RopeTable* rope, Workspace& work) {
  for (std::size_t i = range.begin; i < range.end; ++i) {
    run_block(weights, i, tokens, {0, tokens}, segments, rope, work);
  }
}

void show_output_input(const DecoderWeights& weights, Workspace& work, std::size_t rows) {
  const std::span<const float> x = std::span(work.x).first(rows * weights.traits.width);
  const std::span<float> normed = sized(work.normed, x.size());
  normalize(weights.traits, weights.output_norm, x, normed);
  work.show({weights.traits.tied_output ? Role::token_embedding : Role::output}, 0, normed, rows);
}

void compute_logits(const DecoderWeights& weights, Workspace& work, std::size_t first, std::size_t rows,
                    std::span<float> logits) {
  const Traits& traits = weights.traits;
  const std::span<const float> x = std::span(work.x).subspan(first * traits.width, rows * traits.width);
  const std::span<float> normed = sized(work.normed, x.size());
  normalize(traits, weights.output_norm, x, normed);
  weights.output.matrix->multiply(normed, rows, logits);
  if (traits.logit_scale != 1) kernels::scale(logits, traits.logit_scale);
  if (traits.logit_cap != 0) {
    kernels::scale(logits, 1 / traits.logit_cap);
    kernels::activate(kernels::Activation::tanh, logits, logits);
    kernels::scale(logits, traits.logit_cap);
  }
}

}  // namespace imago::lm
