// Softmax (spec/layers.md §4.15), ten variants. All but Sparse and Entmax are the kernels' softmax of values that were
// prepared: divided by the temperature, masked, with noise. The probabilities of forward are state.post, and all that
// backward needs.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/settings.h"
#include "layers/softmax_variants.h"
#include "layers/types.h"
#include "weights/random.h"

namespace imago::layers {

namespace {

constexpr std::size_t kGrain = 4096;  // values worth a thread: each takes an exponential, a logarithm or a sort
constexpr float kMaskedOut = -1e9f;   // in place of a value whose mask is false

struct Settings {
  float temperature;
  double alpha;      // of entmax: 1 is softmax, 2 sparsemax
  std::size_t rows;  // 0: rows are the last dimension
  std::size_t cols;
};

Settings settings_of(const LayerConfig& c) {
  const bool grid = c.softmax_type == SoftmaxType::grid || c.softmax_type == SoftmaxType::hierarchical;
  const bool levels = c.softmax_type == SoftmaxType::hierarchical && !c.hierarchy_levels.empty();
  int rows = grid ? c.softmax_rows : 0;
  int cols = grid ? c.softmax_cols : 0;
  if (levels) {
    rows = 1;  // as many as there are
    cols = c.hierarchy_levels.back();
  }
  if (rows < 0 || cols < 0) throw UsageError(fmt::format("Softmax: a grid of {} × {} is none", rows, cols));
  const float temperature = static_cast<float>(c.temperature == 0 ? 1 : c.temperature);
  if (!std::isfinite(temperature) || temperature == 0) {
    throw UsageError(fmt::format("Softmax: a temperature of {} is not usable", c.temperature));
  }
  double alpha = 1;
  if (c.softmax_type == SoftmaxType::sparse) alpha = 2;
  if (c.softmax_type == SoftmaxType::entmax) {
    if (std::isnan(c.entmax_alpha)) throw UsageError("Softmax: entmax_alpha is not a number");
    alpha = std::clamp(c.entmax_alpha == 0 ? 1.5 : c.entmax_alpha, 1.0, 2.0);
  }
  const bool whole = rows > 0 && cols > 0;
  return {.temperature = temperature,
          .alpha = alpha,
          .rows = whole ? static_cast<std::size_t>(rows) : 0,
          .cols = whole ? static_cast<std::size_t>(cols) : 0};
}

WeightShape weight_shape_of(const LayerConfig& config) {
  settings_of(config);
  return no_weights(config);
}

std::size_t row_length(const Layer& layer, const Settings& settings, const Shape& shape) {
  if (settings.rows == 0) return shape.last();
  const std::size_t grid = checked_mul(settings.rows, settings.cols, "softmax grid");
  if (shape.elements() % grid != 0) {
    throw ShapeError(fmt::format("{}: an input of shape {} is no grids of {} × {}", describe(layer), shape.to_string(),
                                 settings.rows, settings.cols));
  }
  return settings.cols;
}

/// The mask where it applies; it may be shorter than a row.
const std::vector<bool>* mask_of(const Layer& layer, std::size_t cols) {
  const std::vector<bool>& mask = layer.config.mask;
  if (layer.config.softmax_type != SoftmaxType::masked || mask.empty()) return nullptr;
  if (mask.size() > cols) {
    throw ShapeError(fmt::format("{}: a mask of {} values for rows of {}", describe(layer), mask.size(), cols));
  }
  return &mask;
}

/// body(first, row) for each row of `cols` values.
template <class Body>
void for_each_row(std::span<float> values, std::size_t cols, const Body& body) {
  const std::size_t grain = std::max<std::size_t>(1, kGrain / cols);
  parallel_for(values.size() / cols, grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) body(row * cols, values.subspan(row * cols, cols));
  });
}

void replace_where_masked(const std::vector<bool>& mask, float value, std::span<float> row) {
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i]) row[i] = value;
  }
}

void forward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, LayerState& state, Run& run) {
  const Settings settings = settings_of(layer.config);
  const std::size_t cols = row_length(layer, settings, x.shape());
  state.post.resize(x.shape());
  if (x.size() == 0) return;

  const std::vector<bool>* const mask = mask_of(layer, cols);
  const bool noisy = layer.config.softmax_type == SoftmaxType::gumbel;
  const bool simple = settings.alpha == 1;
  const bool sparse = settings.alpha == 2;
  // Sparsemax sorts in its result, so what it sorts lies elsewhere.
  state.scratch.resize(1);
  if (sparse) state.scratch[0].resize(x.shape());
  const std::span<float> z = sparse ? state.scratch[0].values() : state.post.values();
  for_each_row(z, cols, [&](std::size_t first, std::span<float> row) {
    for (std::size_t i = 0; i < cols; ++i) row[i] = x[first + i] / settings.temperature;
    if (mask != nullptr) replace_where_masked(*mask, kMaskedOut, row);
    if (noisy) add_gumbel_noise(row, run.seed, first);
    if (sparse) sparsemax(row, state.post.values().subspan(first, cols));
    if (!sparse && !simple) entmax(row, settings.alpha, row);
  });
  if (simple) kernels::softmax(z, cols);
  if (noisy) run.seed = derive_seed(run.seed, x.size());  // no draw had this index
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient&, Run&) {
  const Settings settings = settings_of(layer.config);
  const std::size_t cols = row_length(layer, settings, x.shape());
  state.grad_input.resize(x.shape());
  if (x.size() == 0) return;

  const std::vector<bool>* const mask = mask_of(layer, cols);
  for_each_row(state.grad_input.values(), cols, [&](std::size_t first, std::span<float> row) {
    simplex_backward(state.post.values().subspan(first, cols), settings.alpha, settings.temperature,
                     grad_output.values().subspan(first, cols), row);
    if (mask != nullptr) replace_where_masked(*mask, 0, row);
  });
}

}  // namespace

const LayerFunctions kSoftmax = {
    .type = LayerType::softmax,
    .weight_shape = weight_shape_of,
    .initialize = nullptr,
    .forward = forward,
    .backward = backward,
};

}  // namespace imago::layers
