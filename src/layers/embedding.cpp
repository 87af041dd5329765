// Embedding: f(row of the table) for each id in x. saved[0]: the rows as they are in the table, kept for backward
// unless f is linear.

#include <algorithm>
#include <optional>
#include <type_traits>

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
std::optional<std::size_t> row_of(double value, std::size_t rows) {
  if (!(value > -1 && value < static_cast<double>(rows))) return std::nullopt;
  return static_cast<std::size_t>(std::max(0.0, value));
}

template <class T>
void look_up(const Layer& layer, const WeightShape& shape, std::span<const T> ids, std::span<T> rows,
             bool for_backward) {
  // Training reads the table again and again, and decodes it once, and float64 codes need no decoding; a forward alone
  // decodes the few rows it needs.
  const bool whole = for_backward || std::is_same_v<T, double>;
  const std::span<const T> table = whole ? weights_of<T>(layer, 0, shape.count()) : std::span<const T>();
  parallel_rows(ids.size(), shape.cols, [&](std::size_t i) {
    const std::span<T> to = rows.subspan(i * shape.cols, shape.cols);
    const std::optional<std::size_t> row = row_of(static_cast<double>(ids[i]), shape.rows);
    if (!row) {
      std::ranges::fill(to, T{0});
    } else if (whole) {
      std::ranges::copy(table.subspan(*row * shape.cols, shape.cols), to.begin());
    } else if constexpr (std::is_same_v<T, float>) {
      decode_slice(*layer.weights, layer.config.scheme(), *row * shape.cols, to);
    }
  });
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const WeightShape shape = shape_of(layer.config);
  Tensor<T>& post = state.values<T>().post;
  resize_outer(post, x.shape().extents(), shape.cols);
  const std::span<T> rows = pre_activation<T>(layer, state, run);
  look_up<T>(layer, shape, x.values(), rows, run.for_backward);
  apply_activation(layer.config.activation, rows, post.values());
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
      const std::optional<std::size_t> row = row_of(static_cast<double>(x[i]), shape.rows);
      if (!row) continue;
      for (std::size_t c = begin; c < end; ++c) {
        gradient.weights[*row * shape.cols + c] += grad_rows[i * shape.cols + c];
      }
    }
  });
}

}  // namespace

const LayerFunctions kEmbedding{LayerType::embedding, shape_of,        initialize_matrix,
                                forward<float>,       forward<double>, backward};

}  // namespace imago::layers
