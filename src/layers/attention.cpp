// MultiHeadAttention: its settings, its projections, and the distribution of heads over threads. The arithmetic of one
// head is in attention_core.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "layers/attention_core.h"
#include "layers/settings.h"

namespace imago::layers {

namespace {

[[noreturn]] void refuse(const std::string& problem) { throw UsageError("MultiHeadAttention: " + problem); }

void check_norm(const std::vector<float>& norm, const char* field, std::size_t one, std::size_t all) {
  if (norm.empty() || norm.size() == one || norm.size() == all) return;
  refuse(fmt::format("{} has {} values, not {} or {}", field, norm.size(), one, all));
}

}  // namespace

AttentionDims attention_dims(const LayerConfig& c) {
  AttentionDims dims{};
  dims.width = required(c, c.d_model, "d_model");
  dims.heads = required(c, c.num_heads, "num_heads");
  dims.kv_heads = c.num_kv_heads == 0 ? dims.heads : required(c, c.num_kv_heads, "num_kv_heads");
  if (dims.heads % dims.kv_heads != 0) {
    refuse(fmt::format("num_heads {} is not a multiple of num_kv_heads {}", dims.heads, dims.kv_heads));
  }
  if (c.head_dim == 0 && dims.width % dims.heads != 0) {
    refuse(
        fmt::format("d_model {} is not a multiple of num_heads {}, and head_dim is not set", dims.width, dims.heads));
  }
  dims.head_values = c.head_dim == 0 ? dims.width / dims.heads : required(c, c.head_dim, "head_dim");
  dims.queries = dims.heads * dims.head_values;  // factors below 2^31: no overflow
  dims.keys = dims.kv_heads * dims.head_values;
  if (c.query_dim != 0 && required(c, c.query_dim, "query_dim") != dims.queries) {
    refuse(fmt::format("query_dim is {}, but {} heads of {} values make {}", c.query_dim, dims.heads, dims.head_values,
                       dims.queries));
  }
  check_norm(c.q_norm, "q_norm", dims.head_values, dims.queries);
  check_norm(c.k_norm, "k_norm", dims.head_values, dims.keys);
  check_norm(c.inner_norm, "inner_norm", dims.queries, dims.queries);
  if (std::isinf(c.rope_freq_base)) refuse("rope_freq_base is infinite");
  dims.biased = !c.no_bias;
  dims.turns = !c.no_rope && dims.head_values > 1;
  dims.rope_base = c.rope_freq_base > 0 ? c.rope_freq_base : 10000;
  dims.eps = effective_eps(c.rms_norm_eps);
  return dims;
}

Linear attention_projection(const AttentionDims& dims) {
  return {.matrix = {.first = 0, .rows = dims.projected(), .cols = dims.width},
          .bias_first = dims.biased ? dims.matrix_values() : kNoBias};
}

Linear attention_output(const AttentionDims& dims) {
  return {.matrix = {.first = dims.projected() * dims.width, .rows = dims.width, .cols = dims.queries},
          .bias_first = dims.biased ? dims.matrix_values() + dims.projected() : kNoBias};
}

AttentionBatch attention_batch(const Layer& layer, const AttentionDims& dims, const Shape& shape) {
  if (shape.rank() == 3 && shape.last() == dims.width) return {.sequences = shape[0], .steps = shape[1]};
  if (shape.rank() == 2 && shape.last() == dims.width) return {.sequences = 1, .steps = shape[0]};
  const std::size_t tokens = rows_of(layer, shape, dims.width);
  const int given = layer.config.seq_length;
  const std::size_t steps = given > 0 ? static_cast<std::size_t>(given) : std::max<std::size_t>(tokens, 1);
  if (tokens % steps != 0) {
    throw ShapeError(
        fmt::format("{}: an input of shape {} has {} positions of {} values, which do not divide into sequences of {}",
                    describe(layer), shape.to_string(), tokens, dims.width, steps));
  }
  return {.sequences = tokens / steps, .steps = steps};
}

namespace {

// In LayerState::saved. Only training keeps the probabilities, only layers with an inner norm its result.
enum Saved : std::size_t { kProjected, kProbabilities, kAttended, kNormed, kSavedCount };
// In LayerState::scratch: tiles of the heads at work, gradients of kProjected and kAttended.
enum Scratch : std::size_t { kTiles, kGradProjected, kGradAttended, kScratchCount };

WeightShape weight_shape_of(const LayerConfig& config) {
  constexpr std::string_view kWhat = "the weights of MultiHeadAttention";
  const AttentionDims dims = attention_dims(config);
  const std::size_t matrices = checked_mul(2 * (dims.queries + dims.keys), dims.width, kWhat);
  const std::size_t biases = dims.projected() + dims.width;
  return {.rows = 1,
          .cols = checked_add(matrices, biases, kWhat),
          .matrices = {{{dims.projected(), dims.width}, {dims.width, dims.queries}}},
          .vectors = biases};
}

void initialize(const LayerConfig& config, WeightStore& weights, std::uint64_t seed) {
  initialize_uniform(weights, seed, 0, attention_dims(config).matrix_values());
}

template <class T>
const AttentionTable<T>* table_of(const AttentionDims& dims, std::size_t steps, LayerValues<T>& values) {
  if (!dims.turns) return nullptr;
  const AttentionTable<T>* const table = values.attention_table.get();
  if (table == nullptr || table->head_values != dims.head_values || table->base != dims.rope_base ||
      table->positions < steps) {
    values.attention_table = std::make_shared<AttentionTable<T>>(dims.head_values, dims.rope_base, steps);
  }
  return values.attention_table.get();
}

/// Hands out the tiles of one thread from its scratch memory.
template <class T>
class Tiles {
 public:
  explicit Tiles(std::span<T> values) : left_(values) {}
  std::span<T> next(std::size_t count) {
    const std::span<T> tile = left_.first(count);
    left_ = left_.subspan(count);
    return tile;
  }

 private:
  std::span<T> left_;
};

/// What forward and backward have in common.
template <class T>
struct Call {
  const LayerConfig& config;
  AttentionDims dims;
  AttentionBatch batch;
  const AttentionTable<T>* table;

  std::size_t tile() const { return checked_mul(batch.steps, dims.head_values, "attention tile"); }
  std::size_t groups() const { return batch.sequences * dims.kv_heads; }

  HeadTransform<T> of_query(std::size_t head) const { return transform(config.q_norm, head); }
  HeadTransform<T> of_key(std::size_t head) const { return transform(config.k_norm, head); }

  // Where the rows of one head of one sequence begin.
  std::size_t query_at(std::size_t sequence, std::size_t head) const {
    return sequence * batch.steps * dims.projected() + head * dims.head_values;
  }
  std::size_t key_at(std::size_t sequence, std::size_t head) const { return query_at(sequence, head) + dims.queries; }
  std::size_t value_at(std::size_t sequence, std::size_t head) const { return key_at(sequence, head) + dims.keys; }
  std::size_t attended_at(std::size_t sequence, std::size_t head) const {
    return sequence * batch.steps * dims.queries + head * dims.head_values;
  }

 private:
  HeadTransform<T> transform(const std::vector<float>& norm, std::size_t head) const {
    std::span<const float> weights = norm;
    if (weights.size() > dims.head_values) weights = weights.subspan(head * dims.head_values, dims.head_values);
    return {.norm = weights, .eps = dims.eps, .table = table};
  }
};

/// Runs body(sequence, kv head, tiles) for each head of keys, with `values` values of tiles per thread.
template <class T, class Body>
void for_each_group(const Call<T>& call, Tensor<T>& scratch, std::size_t values, const Body& body) {
  const std::size_t groups = call.groups();
  const std::size_t parts = std::min(groups, static_cast<std::size_t>(pool_threads()));
  const std::size_t wanted = checked_mul(parts, values, "attention tiles");
  if (scratch.size() < wanted) scratch.resize(Shape{wanted});  // never shrinks, since backward takes more than forward
  const auto run_part = [&](std::size_t part) {
    for (std::size_t group = groups * part / parts; group < groups * (part + 1) / parts; ++group) {
      body(group / call.dims.kv_heads, group % call.dims.kv_heads,
           Tiles(scratch.values().subspan(part * values, values)));
    }
  };
  parallel_rows(parts, 1, run_part, 1);
}

template <class T>
void attend_all(const Call<T>& call, LayerValues<T>& own, bool keep) {
  const AttentionDims& dims = call.dims;
  const std::size_t tile = call.tile();
  const std::size_t kept = probability_count(call.batch.steps);
  const std::size_t block = block_probability_count(call.batch.steps);
  const std::span<const T> rows = own.saved[kProjected].values();
  const std::span<T> attended = own.saved[kAttended].values();
  if (keep) {
    resize_to(own.saved[kProbabilities], {checked_mul(call.batch.sequences * dims.heads, kept, "attention")});
  }
  const std::span<T> probabilities = own.saved[kProbabilities].values();
  const auto gather = [&](std::size_t at, const HeadTransform<T>& transform, std::span<T> to) {
    gather_head({&rows[at], dims.projected()}, call.batch.steps, dims.head_values, transform, to.data());
  };
  const std::size_t values =
      checked_add(checked_mul(tile, std::size_t{4}, "attention tiles"), block, "attention tiles");
  for_each_group(call, own.scratch[kTiles], values, [&](std::size_t sequence, std::size_t kv_head, Tiles<T> tiles) {
    const std::span<T> q = tiles.next(tile), k = tiles.next(tile), v = tiles.next(tile), out = tiles.next(tile);
    const std::span<T> one_block = tiles.next(block);
    gather(call.key_at(sequence, kv_head), call.of_key(kv_head), k);
    gather(call.value_at(sequence, kv_head), {}, v);
    for (std::size_t head = kv_head * dims.group(); head < (kv_head + 1) * dims.group(); ++head) {
      gather(call.query_at(sequence, head), call.of_query(head), q);
      attend(HeadTileOf<T>{call.batch.steps, dims.head_values, q, k, v},
             keep ? probabilities.subspan((sequence * dims.heads + head) * kept, kept) : one_block, out);
      scatter_head(out.data(), call.batch.steps, dims.head_values, &attended[call.attended_at(sequence, head)],
                   dims.queries);
    }
  });
}

void attend_all_backward(const Call<float>& call, LayerState& state) {
  const AttentionDims& dims = call.dims;
  const std::size_t tile = call.tile();
  const std::size_t kept = probability_count(call.batch.steps);
  const std::size_t block = block_probability_count(call.batch.steps);
  const std::span<const float> rows = state.saved[kProjected].values();
  const std::span<const float> probabilities = state.saved[kProbabilities].values();
  const std::span<const float> grad_attended = state.scratch[kGradAttended].values();
  const std::span<float> grad_rows = state.scratch[kGradProjected].values();
  const auto gather = [&](std::size_t at, const HeadTransform<float>& transform, std::span<float> to) {
    gather_head({&rows[at], dims.projected()}, call.batch.steps, dims.head_values, transform, to.data());
  };
  const auto scatter = [&](std::span<const float> from, std::size_t at, const HeadTransform<float>& transform) {
    scatter_gradient(from.data(), {&rows[at], dims.projected()}, call.batch.steps, dims.head_values, transform,
                     &grad_rows[at]);
  };
  const std::size_t values =
      checked_add(checked_mul(tile, std::size_t{7}, "attention tiles"), block, "attention tiles");
  for_each_group(call, state.scratch[kTiles], values,
                 [&](std::size_t sequence, std::size_t kv_head, Tiles<float> tiles) {
                   const std::span<float> q = tiles.next(tile), k = tiles.next(tile), v = tiles.next(tile);
                   const std::span<float> grad_out = tiles.next(tile), grad_q = tiles.next(tile);
                   const std::span<float> grad_k = tiles.next(tile), grad_v = tiles.next(tile);
                   const std::span<float> one_block = tiles.next(block);
                   gather(call.key_at(sequence, kv_head), call.of_key(kv_head), k);
                   gather(call.value_at(sequence, kv_head), {}, v);
                   std::ranges::fill(grad_k, 0.0f);
                   std::ranges::fill(grad_v, 0.0f);
                   for (std::size_t head = kv_head * dims.group(); head < (kv_head + 1) * dims.group(); ++head) {
                     gather(call.query_at(sequence, head), call.of_query(head), q);
                     gather_head({&grad_attended[call.attended_at(sequence, head)], dims.queries}, call.batch.steps,
                                 dims.head_values, {}, grad_out.data());
                     attend_backward({call.batch.steps, dims.head_values, q, k, v},
                                     probabilities.subspan((sequence * dims.heads + head) * kept, kept), one_block,
                                     {grad_out, grad_q, grad_k, grad_v});
                     scatter(grad_q, call.query_at(sequence, head), call.of_query(head));
                   }
                   scatter(grad_k, call.key_at(sequence, kv_head), call.of_key(kv_head));
                   scatter(grad_v, call.value_at(sequence, kv_head), {});
                 });
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const AttentionDims dims = attention_dims(layer.config);
  const AttentionBatch batch = attention_batch(layer, dims, x.shape());
  const std::size_t tokens = batch.tokens();
  LayerValues<T>& own = state.values<T>();
  own.saved.resize(kSavedCount);
  own.scratch.resize(kScratchCount);
  if (x.shape().last() == dims.width) {
    own.post.resize(x.shape());
  } else {
    own.post.resize(Shape{batch.sequences, batch.steps, dims.width});
  }
  if (tokens == 0) return;

  resize_to(own.saved[kProjected], {checked_mul(tokens, dims.projected(), "attention")});
  resize_to(own.saved[kAttended], {checked_mul(tokens, dims.queries, "attention")});
  linear_forward(layer, attention_projection(dims), x.values(), tokens, own.saved[kProjected].values(), run);
  const Call<T> call{layer.config, dims, batch, table_of(dims, batch.steps, own)};
  attend_all(call, own, run.for_backward);
  std::span<const T> attended = own.saved[kAttended].values();
  if (!layer.config.inner_norm.empty()) {
    resize_to(own.saved[kNormed], {attended.size()});
    norm_rows<T>(attended, layer.config.inner_norm, dims.eps, own.saved[kNormed].values());
    attended = own.saved[kNormed].values();
  }
  linear_forward(layer, attention_output(dims), attended, tokens, own.post.values(), run);
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const AttentionDims dims = attention_dims(layer.config);
  const AttentionBatch batch = attention_batch(layer, dims, x.shape());
  const std::size_t tokens = batch.tokens();
  state.grad_input.resize(x.shape());
  if (tokens == 0) return;

  const std::size_t kept = checked_mul(batch.sequences * dims.heads, probability_count(batch.steps), "attention");
  if (state.saved.size() != kSavedCount || state.saved[kProbabilities].size() != kept ||
      state.saved[kAttended].size() != tokens * dims.queries) {
    throw UsageError(describe(layer) + ": backward without a forward for training on the same input");
  }
  const bool normed = !layer.config.inner_norm.empty();
  resize_to(state.scratch[kGradAttended], {state.saved[kAttended].size()});
  resize_to(state.scratch[kGradProjected], {state.saved[kProjected].size()});
  const std::span<float> grad_attended = state.scratch[kGradAttended].values();
  linear_backward(layer, attention_output(dims), state.saved[normed ? kNormed : kAttended].values(), tokens,
                  grad_output.values(), gradient.weights, grad_attended);
  if (normed) {
    norm_rows_backward(state.saved[kAttended].values(), layer.config.inner_norm, dims.eps, grad_attended,
                       grad_attended);
  }
  const Call<float> call{layer.config, dims, batch, table_of<float>(dims, batch.steps, state)};
  attend_all_backward(call, state);
  linear_backward(layer, attention_projection(dims), x.values(), tokens, state.scratch[kGradProjected].values(),
                  gradient.weights, state.grad_input.values());
}

}  // namespace

const LayerFunctions kMultiHeadAttention{
    LayerType::multi_head_attention, weight_shape_of, initialize, forward<float>, forward<double>, backward};

}  // namespace imago::layers
