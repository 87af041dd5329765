#include "layers/attention_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/checked.h"
#include "imago/error.h"
#include "layers/fixed_norm.h"
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
    refuse(fmt::format("num_heads {} is no multiple of num_kv_heads {}", dims.heads, dims.kv_heads));
  }
  if (c.head_dim == 0 && dims.width % dims.heads != 0) {
    refuse(fmt::format("d_model {} is no multiple of num_heads {}, and head_dim is not set", dims.width, dims.heads));
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
  dims.rope_base = c.rope_freq_base > 0 ? c.rope_freq_base : 10000;
  dims.eps = effective_eps(c.rms_norm_eps);
  return dims;
}

std::size_t attention_weights(const AttentionDims& dims) {
  const std::size_t rows = 2 * (dims.queries + dims.keys);
  const std::size_t matrices = checked_mul(rows, dims.width, "weights of MultiHeadAttention");
  return checked_add(matrices, dims.projected() + dims.width, "weights of MultiHeadAttention");
}

Linear attention_projection(const AttentionDims& dims) {
  return {.matrix = {.first = 0, .rows = dims.projected(), .cols = dims.width},
          .bias_first = (dims.projected() + dims.queries) * dims.width};
}

Linear attention_output(const AttentionDims& dims) {
  return {.matrix = {.first = dims.projected() * dims.width, .rows = dims.width, .cols = dims.queries},
          .bias_first = (dims.projected() + dims.queries) * dims.width + dims.projected()};
}

AttentionBatch attention_batch(const Layer& layer, const AttentionDims& dims, const Shape& shape) {
  if (shape.rank() == 3 && shape.last() == dims.width) return {.sequences = shape[0], .steps = shape[1]};
  if (shape.rank() == 2 && shape.last() == dims.width) return {.sequences = 1, .steps = shape[0]};
  const std::size_t tokens = rows_of(layer, shape, dims.width);
  const int given = layer.config.seq_length;
  const std::size_t steps = given > 0 ? static_cast<std::size_t>(given) : std::max<std::size_t>(tokens, 1);
  if (tokens % steps != 0) {
    throw ShapeError(fmt::format("{}: an input {} has {} positions of {} values, no whole number of sequences of {}",
                                 describe(layer), shape.to_string(), tokens, dims.width, steps));
  }
  return {.sequences = tokens / steps, .steps = steps};
}

}  // namespace imago::layers
