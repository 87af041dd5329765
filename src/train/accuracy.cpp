#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "imago/error.h"
#include "imago/train.h"
#include "train/batches.h"

namespace imago {

namespace {

std::size_t largest(std::span<const float> values) {
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

struct Score {
  std::size_t rows = 0, right = 0;
};

Score score(const Tensor<float>& output, const Tensor<float>& target) {
  const std::size_t cols = output.shape().last();
  const std::size_t rows = cols == 0 ? 0 : output.size() / cols;
  const bool by_class = target.size() == rows;
  if (rows == 0 || (!by_class && target.size() != output.size())) {
    throw ShapeError(fmt::format("accuracy: outputs {} need class numbers or one-hot rows, not targets {}",
                                 output.shape().to_string(), target.shape().to_string()));
  }
  Score score;
  for (std::size_t row = 0; row < rows; ++row) {
    if (by_class && target[row] == -1) continue;
    const std::size_t got = largest(output.values().subspan(row * cols, cols));
    const bool right =
        by_class ? static_cast<float>(got) == target[row] : got == largest(target.values().subspan(row * cols, cols));
    ++score.rows;
    score.right += right ? 1 : 0;
  }
  return score;
}

}  // namespace

double accuracy(Network& network, const Dataset& data, std::size_t batch) {
  check_dataset(data);
  if (batch == 0) throw UsageError("accuracy: batches of 0 examples");
  std::vector<std::size_t> order(data.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  Tensor<float> x, y;
  Score total;
  for (std::size_t first = 0; first < order.size(); first += batch) {
    const std::span<const std::size_t> examples =
        std::span(order).subspan(first, std::min(batch, order.size() - first));
    gather_examples(data.x, examples, x);
    gather_examples(data.y, examples, y);
    const Score part = score(network.forward(x), y);
    total.rows += part.rows;
    total.right += part.right;
  }
  return total.rows == 0 ? 0 : static_cast<double>(total.right) / static_cast<double>(total.rows);
}

}  // namespace imago
