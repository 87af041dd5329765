#include "layers/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "layers/column_sums.h"
#include "math/products.h"

namespace imago::layers {

namespace {

// Values that are worth a thread: some 10 µs of adding.
constexpr std::size_t kGrain = 16384;

void check_size(const Layer& layer, std::string_view what, std::size_t size, std::size_t batch, std::size_t width) {
  if (size != checked_mul(batch, width, "a batch")) {
    throw ShapeError(fmt::format("{}: {} has {} values, not {} rows of {}", describe(layer), what, size, batch, width));
  }
}

/// Adds `bias` to each row of y.
void add_bias(std::span<const float> bias, std::span<float> y) {
  const std::size_t width = bias.size();
  parallel_for(y.size() / width, kGrain / width + 1, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      for (std::size_t c = 0; c < width; ++c) y[row * width + c] += bias[c];
    }
  });
}

}  // namespace

void linear_forward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                    std::span<float> y, const Run& run) {
  const std::size_t first = part.matrix.first, rows = part.matrix.rows, cols = part.matrix.cols;
  check_size(layer, "the input", x.size(), batch, cols);
  check_size(layer, "the result", y.size(), batch, rows);
  if (run.observer != nullptr && rows * cols == layer.weights->count()) run.observer->see(layer, x, batch);
  const std::span<const float> bias =
      part.bias_first == kNoBias ? std::span<const float>() : weights_of(layer, part.bias_first, rows);
  const Scheme scheme = layer.config.scheme();
  if (!run.for_backward) {
    host_matrix(*layer.weights, scheme, part.matrix)->multiply(x, batch, y, {.bias = bias});
    return;
  }
  const std::span<const float> matrix = decoded_weights(*layer.weights, scheme).subspan(first, rows * cols);
  math::gemm({.m = batch, .n = rows, .k = cols, .b = math::Transpose::yes}, x, matrix, y);
  if (!bias.empty()) add_bias(bias, y);
}

void linear_backward(const Layer& layer, const Linear& part, std::span<const float> x, std::size_t batch,
                     std::span<const float> grad_y, std::span<float> gradient, std::span<float> grad_x,
                     bool add_input) {
  const std::size_t first = part.matrix.first, rows = part.matrix.rows, cols = part.matrix.cols;
  check_size(layer, "the input", x.size(), batch, cols);
  check_size(layer, "the gradient of the result", grad_y.size(), batch, rows);
  check_size(layer, "the gradient of the weights", gradient.size(), 1, layer.weights->count());
  math::gemm({.m = rows, .n = cols, .k = batch, .a = math::Transpose::yes}, grad_y, x,
             gradient.subspan(first, rows * cols), math::Write::add);
  if (part.bias_first != kNoBias) {
    // `width`, because clang 14 cannot capture a structured binding.
    add_column_sums(batch, gradient.subspan(part.bias_first, rows),
                    [&, width = part.matrix.rows](std::size_t row, std::size_t c) { return grad_y[row * width + c]; });
  }
  if (grad_x.empty()) return;
  check_size(layer, "the gradient of the input", grad_x.size(), batch, cols);
  const std::span<const float> matrix =
      decoded_weights(*layer.weights, layer.config.scheme()).subspan(first, rows * cols);
  math::gemm({.m = batch, .n = cols, .k = rows}, grad_y, matrix, grad_x,
             add_input ? math::Write::add : math::Write::replace);
}

std::span<const float> weights_of(const Layer& layer, std::size_t first, std::size_t count) {
  return decoded_slice(*layer.weights, layer.config.scheme(), first, count);
}

std::size_t rows_of(const Layer& layer, const Shape& x, std::size_t width) {
  if (width == 0 || x.elements() % width != 0) {
    throw ShapeError(
        fmt::format("{}: an input of shape {} is no rows of {} values", describe(layer), x.to_string(), width));
  }
  return x.elements() / width;
}

void resize_rows(Tensor<float>& result, const Tensor<float>& x, std::size_t width, std::size_t new_width) {
  const std::span<const std::size_t> from = x.shape().extents();
  const bool keeps_shape = !from.empty() && from.back() == width;
  const std::size_t outer = keeps_shape ? from.size() - 1 : 1;
  const std::size_t rows = x.size() / width;
  const std::span<const std::size_t> now = result.shape().extents();
  if (now.size() == outer + 1 && now.back() == new_width &&
      (keeps_shape ? std::equal(now.begin(), now.end() - 1, from.begin()) : now.front() == rows)) {
    return;
  }
  std::vector<std::size_t> extents = keeps_shape ? std::vector(from.begin(), from.end() - 1) : std::vector{rows};
  extents.push_back(new_width);
  result.resize(Shape(std::move(extents)));
}

}  // namespace imago::layers
