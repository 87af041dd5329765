// MultiHeadAttention: projections as products, heads as dense tiles. The query heads that share a head of keys follow
// each other, so that one product of [group · steps] rows serves all of them, and sums the gradients of keys.
//
// saved: the projection, the probabilities, the attended values, their norm, and the tiles of q, k and v.

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "kernels/cuda/ops.h"
#include "layers/attention_core.h"
#include "layers/cuda/kernels.h"
#include "layers/cuda/run.h"
#include "layers/settings.h"

namespace imago::layers::cuda {

namespace {

enum Saved : std::size_t { kProjected, kProbabilities, kAttended, kNormed, kQueries, kKeys, kValues, kSavedCount };
enum Scratch : std::size_t {
  kRope,
  kQueryNorm,
  kKeyNorm,
  kInnerNorm,
  kTile,
  kGradProjected,
  kGradAttended,
  kGradProbabilities,
  kGradQueries,
  kGradKeys,
  kGradValues,
  kScratchCount
};

// Probabilities held at a time outside of training, where they are not kept: 256 MiB.
constexpr std::size_t kMostProbabilities = std::size_t{64} << 20;

struct Call {
  AttentionDims dims;
  AttentionBatch batch;
  HeadTiles queries, keys, values, attended;
  std::size_t groups() const { return batch.sequences * dims.kv_heads; }
  std::size_t rows() const { return dims.group() * batch.steps; }          // of a group's queries
  std::size_t query_tile() const { return rows() * dims.head_values; }     // values of a group
  std::size_t key_tile() const { return batch.steps * dims.head_values; }  // likewise
  std::size_t scores() const { return rows() * batch.steps; }              // likewise
  float factor() const { return static_cast<float>(1 / std::sqrt(static_cast<double>(dims.head_values))); }
};

const float* setting(const std::vector<float>& values, DeviceTensor& to, DeviceRun& run) {
  if (values.empty()) return nullptr;
  to.resize(*run.device, Shape{values.size()});
  run.stream.copy_in(std::as_bytes(std::span(values)), to.data());
  return to.data();
}

/// The table of angles, uploaded when the number of steps grows.
const float* rope_of(const AttentionDims& dims, std::size_t steps, DeviceState& state, DeviceRun& run) {
  if (!dims.turns) return nullptr;
  if (state.rope_steps < steps || state.rope_values != dims.head_values || state.rope_base != dims.rope_base) {
    const AttentionTable<float> table(dims.head_values, dims.rope_base, steps);
    state.scratch[kRope].resize(*run.device, Shape{steps, 2 * table.pairs});
    run.stream.copy_in(std::as_bytes(std::span(table.cos_sin)), state.scratch[kRope].data());
    run.stream.wait();  // the copy reads the table on the host
    state.rope_steps = steps;
    state.rope_values = dims.head_values;
    state.rope_base = dims.rope_base;
  }
  return state.scratch[kRope].data();
}

Call call_of(const Layer& layer, const DeviceTensor& x, DeviceState& state, DeviceRun& run) {
  const LayerConfig& config = layer.config;
  Call call{.dims = attention_dims(config), .batch = {}, .queries = {}, .keys = {}, .values = {}, .attended = {}};
  const AttentionDims& dims = call.dims;
  call.batch = attention_batch(layer, dims, x.shape());
  if (call.batch.tokens() == 0) return call;
  HeadTiles tiles{.sequences = call.batch.sequences,
                  .steps = call.batch.steps,
                  .heads = dims.kv_heads,
                  .head_values = dims.head_values,
                  .row_stride = dims.projected()};
  call.values = tiles;
  tiles.eps = dims.eps;
  tiles.rope = rope_of(dims, call.batch.steps, state, run);
  tiles.rotary = dims.head_values / 2 * 2;
  const auto stride = [&](const std::vector<float>& norm) {
    return norm.size() > dims.head_values ? dims.head_values : 0;
  };
  call.keys = tiles;
  call.keys.norm = setting(config.k_norm, state.scratch[kKeyNorm], run);
  call.keys.norm_stride = stride(config.k_norm);
  call.queries = tiles;
  call.queries.heads = dims.heads;
  call.queries.norm = setting(config.q_norm, state.scratch[kQueryNorm], run);
  call.queries.norm_stride = stride(config.q_norm);
  call.attended = call.values;
  call.attended.heads = dims.heads;
  call.attended.row_stride = dims.queries;
  return call;
}

/// One matrix per group, one after the other.
struct Matrices {
  float* values;
  std::size_t rows, cols;
  bool transposed = false;
  std::size_t step() const { return rows * cols; }
};

/// c = a · b for each of `count` groups.
void multiply(const Matrices& a, const Matrices& b, const Matrices& c, std::size_t count, DeviceRun& run) {
  gemm({.a = a.values,
        .b = b.values,
        .c = c.values,
        .m = c.rows,
        .n = c.cols,
        .k = a.transposed ? a.rows : a.cols,
        .a_transposed = a.transposed,
        .b_transposed = b.transposed,
        .batch = count,
        .a_step = a.step(),
        .b_step = b.step(),
        .c_step = c.step()},
       run.stream);
}

Matrices query_tiles(const Call& call, const DeviceTensor& tensor, std::size_t first = 0) {
  return {tensor.data() + first * call.query_tile(), call.rows(), call.dims.head_values};
}
Matrices key_tiles(const Call& call, const DeviceTensor& tensor, std::size_t first = 0) {
  return {tensor.data() + first * call.key_tile(), call.batch.steps, call.dims.head_values};
}
Matrices score_tiles(const Call& call, const DeviceTensor& tensor) {
  return {tensor.data(), call.rows(), call.batch.steps};
}
Matrices transposed(Matrices matrices) {
  matrices.transposed = true;
  return matrices;
}

/// Tiles of the attended values from those of q, k and v, for `count` groups from `first` on.
void attend(const Call& call, DeviceState& state, std::size_t first, std::size_t count, DeviceRun& run) {
  const Matrices p = score_tiles(call, state.saved[kProbabilities]);
  multiply(query_tiles(call, state.saved[kQueries], first), transposed(key_tiles(call, state.saved[kKeys], first)), p,
           count, run);
  causal_softmax(p.values, count * call.rows(), call.batch.steps, call.factor(), run.stream);
  multiply(p, key_tiles(call, state.saved[kValues], first), query_tiles(call, state.scratch[kTile], first), count, run);
}

void forward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, DeviceState& state, LayerState&,
             DeviceRun& run) {
  state.saved.resize(kSavedCount);
  state.scratch.resize(kScratchCount);
  const Call call = call_of(layer, x, state, run);
  const AttentionDims& dims = call.dims;
  const std::size_t tokens = call.batch.tokens();
  state.post.resize(*run.device, x.shape().last() == dims.width
                                     ? x.shape()
                                     : Shape{call.batch.sequences, call.batch.steps, dims.width});
  if (tokens == 0) return;

  const std::size_t groups = call.groups();
  state.saved[kProjected].resize(*run.device, Shape{tokens, dims.projected()});
  state.saved[kAttended].resize(*run.device, Shape{tokens, dims.queries});
  state.saved[kQueries].resize(*run.device, Shape{groups, call.query_tile()});
  state.scratch[kTile].resize(*run.device, Shape{groups, call.query_tile()});
  for (const Saved part : {kKeys, kValues}) state.saved[part].resize(*run.device, Shape{groups, call.key_tile()});
  float* const projected = state.saved[kProjected].data();
  linear_forward(layer, attention_projection(dims), x.data(), tokens, projected, run);
  gather_heads(call.queries, projected, state.saved[kQueries].data(), run.stream);
  gather_heads(call.keys, projected + dims.queries, state.saved[kKeys].data(), run.stream);
  gather_heads(call.values, projected + dims.queries + dims.keys, state.saved[kValues].data(), run.stream);

  const std::size_t at_once =
      run.for_backward() ? groups : std::clamp<std::size_t>(kMostProbabilities / call.scores(), 1, groups);
  state.saved[kProbabilities].resize(*run.device, Shape{at_once, call.rows(), call.batch.steps});
  for (std::size_t first = 0; first < groups; first += at_once) {
    attend(call, state, first, std::min(at_once, groups - first), run);
  }
  scatter_heads(call.attended, state.scratch[kTile].data(), state.saved[kAttended].data(), run.stream);

  const float* attended = state.saved[kAttended].data();
  if (const float* norm = setting(layer.config.inner_norm, state.scratch[kInnerNorm], run)) {
    state.saved[kNormed].resize(*run.device, Shape{tokens, dims.queries});
    kernels::cuda::norm({.x = state.saved[kAttended].data(),
                         .weight = norm,
                         .y = state.saved[kNormed].data(),
                         .rows = tokens,
                         .cols = dims.queries,
                         .eps = static_cast<float>(dims.eps)},
                        run.stream);
    attended = state.saved[kNormed].data();
  }
  linear_forward(layer, attention_output(dims), attended, tokens, state.post.data(), run);
}

/// Gradients of the tiles of q, k and v from that of the attended values, which is in kTile.
void attend_backward(const Call& call, DeviceState& state, DeviceRun& run) {
  const std::size_t groups = call.groups();
  const Matrices p = score_tiles(call, state.saved[kProbabilities]);
  const Matrices g = score_tiles(call, state.scratch[kGradProbabilities]);
  const Matrices grad_out = query_tiles(call, state.scratch[kTile]);
  multiply(transposed(p), grad_out, key_tiles(call, state.scratch[kGradValues]), groups, run);
  multiply(grad_out, transposed(key_tiles(call, state.saved[kValues])), g, groups, run);
  softmax_backward({.p = p.values,
                    .g = g.values,
                    .grad_x = g.values,
                    .rows = groups * call.rows(),
                    .cols = call.batch.steps,
                    .g_stride = call.batch.steps,
                    .grad_stride = call.batch.steps,
                    .factor = call.factor()},
                   run.stream);
  multiply(g, key_tiles(call, state.saved[kKeys]), query_tiles(call, state.scratch[kGradQueries]), groups, run);
  multiply(transposed(g), query_tiles(call, state.saved[kQueries]), key_tiles(call, state.scratch[kGradKeys]), groups,
           run);
}

void backward(Layer& layer, const DeviceTensor& x, const DeviceTensor*, const DeviceTensor& grad_output,
              DeviceState& state, DeviceRun& run) {
  const Call call = call_of(layer, x, state, run);
  const AttentionDims& dims = call.dims;
  const std::size_t tokens = call.batch.tokens();
  state.grad_input.resize(*run.device, x.shape());
  if (tokens == 0) return;

  state.scratch[kGradAttended].resize(*run.device, Shape{tokens, dims.queries});
  state.scratch[kGradProjected].resize(*run.device, Shape{tokens, dims.projected()});
  state.scratch[kGradProbabilities].resize(*run.device, state.saved[kProbabilities].shape());
  state.scratch[kGradQueries].resize(*run.device, state.saved[kQueries].shape());
  for (const Scratch part : {kGradKeys, kGradValues})
    state.scratch[part].resize(*run.device, state.saved[kKeys].shape());
  float* const grad_attended = state.scratch[kGradAttended].data();
  const bool normed = !layer.config.inner_norm.empty();
  linear_backward(layer, attention_output(dims), state.saved[normed ? kNormed : kAttended].data(), tokens,
                  grad_output.data(), grad_attended, run);
  if (normed) {
    norm_backward({.x = state.saved[kAttended].data(),
                   .weight = state.scratch[kInnerNorm].data(),
                   .grad_y = grad_attended,
                   .grad_x = grad_attended,
                   .rows = tokens,
                   .cols = dims.queries,
                   .eps = dims.eps,
                   .layer_norm = false},
                  run.stream);
  }
  gather_heads(call.attended, grad_attended, state.scratch[kTile].data(), run.stream);
  attend_backward(call, state, run);
  const float* const projected = state.saved[kProjected].data();
  float* const grad_projected = state.scratch[kGradProjected].data();
  scatter_gradients(call.queries, state.scratch[kGradQueries].data(), projected, grad_projected, run.stream);
  scatter_gradients(call.keys, state.scratch[kGradKeys].data(), projected + dims.queries, grad_projected + dims.queries,
                    run.stream);
  const std::size_t values = dims.queries + dims.keys;
  scatter_gradients(call.values, state.scratch[kGradValues].data(), projected + values, grad_projected + values,
                    run.stream);
  linear_backward(layer, attention_projection(dims), x.data(), tokens, grad_projected, state.grad_input.data(), run);
}

}  // namespace

const DeviceFunctions kAttention{forward, backward};

}  // namespace imago::layers::cuda
