// Embedding: f(row of the table) for each id in x. saved[0]: the rows as they are in the table, kept for backward
// unless f is linear.

#include <algorithm>
#include <optional>

#include "base/parallel.h"
#include "layers/linear.h"

namespace imago::layers {

namespace {

constexpr std::size_t kGrain = 16384;  // values worth a thread to add

WeightShape shape_of(const LayerConfig& config) {
  return {.rows = required(config, config.vocab_size, "vocab_size"),
          .cols = required(config, config.embedding_dim, "embedding_dim")};
}

/// The row that an id names: truncated toward zero; none outside the table, and for NaN.
std::optional<std::size_t> row_of(float id, std::size_t rows) {
  const double value = static_cast<double>(id);
  if (!(value > -1 && value < static_cast<double>(rows))) return std::nullopt;
  return static_cast<std::size_t>(std::max(0.0, value));
}

void look_up(const Layer& layer, const WeightShape& shape, std::span<const float> ids, std::span<float> rows,
             bool for_backward) {
  const Scheme scheme = layer.config.scheme();
  // Training reads the table again and again, and decodes it once; a forward alone decodes the few rows it needs.
  const std::span<const float> table =
      for_backward ? decoded_weights(*layer.weights, scheme) : std::span<const float>();
  parallel_rows(ids.size(), shape.cols, [&](std::size_t i) {
    const std::span<float> to = rows.subspan(i * shape.cols, shape.cols);
    const std::optional<std::size_t> row = row_of(ids[i], shape.rows);
    if (!row) {
      std::ranges::fill(to, 0.0f);
    } else if (for_backward) {
      std::ranges::copy(table.subspan(*row * shape.cols, shape.cols), to.begin());
    } else {
      decode_slice(*layer.weights, scheme, *row * shape.cols, to);
    }
  });
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const WeightShape shape = shape_of(layer.config);
  resize_outer(state.post, x.shape().extents(), shape.cols);
  const std::span<float> rows = pre_activation(layer, state, run);
  look_up(layer, shape, x.values(), rows, run.for_backward);
  apply_activation(layer.config.activation, rows, state.post.values());
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient& gradient, Run&) {
  const WeightShape shape = shape_of(layer.config);
  const std::span<const float> grad_rows = grad_pre_activation(layer, grad_output, state);
  state.grad_input.resize(x.shape());
  std::ranges::fill(state.grad_input.values(), 0.0f);
  // Ids may repeat: threads share columns, not ids, and each sum runs in the order of the ids.
  parallel_for(shape.cols, kGrain / (x.size() + 1) + 16, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::optional<std::size_t> row = row_of(x[i], shape.rows);
      if (!row) continue;
      for (std::size_t c = begin; c < end; ++c) {
        gradient.weights[*row * shape.cols + c] += grad_rows[i * shape.cols + c];
      }
    }
  });
}

}  // namespace

const LayerFunctions kEmbedding{LayerType::embedding, shape_of, initialize_matrix, forward, backward};

}  // namespace imago::layers
