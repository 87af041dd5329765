// Scores a network on a dataset.

#include <fmt/format.h>

#include <algorithm>

#include "imago/error.h"
#include "imago/precision.h"
#include "precision/measures.h"
#include "train/batches.h"

namespace imago {

namespace {

std::size_t output_rows(const Tensor<float>& output) {
  return output.size() / std::max<std::size_t>(output.shape().last(), 1);
}

bool are_class_numbers(const Tensor<float>& output, const Tensor<float>& target) {
  return output.shape().last() > 1 && target.size() == output_rows(output);
}

bool gives_probabilities(const Network& network) {
  return !network.layers().empty() && network.layers().back().config.type == LayerType::softmax;
}

/// Class numbers as one-hot rows, for the cross-entropy of probabilities.
Tensor<float> one_hot_rows(const Tensor<float>& classes, const Tensor<float>& output) {
  const std::size_t cols = output.shape().last();
  Tensor<float> rows(output.shape());
  for (std::size_t row = 0; row < classes.size(); ++row) {
    const float number = classes[row];
    if (!(number >= 0 && number < static_cast<float>(cols))) {
      throw UsageError(fmt::format("target {} is class {}, and the network has {} outputs", row, number, cols));
    }
    rows[row * cols + static_cast<std::size_t>(number)] = 1;
  }
  return rows;
}

Loss default_loss(const Network& network, const Tensor<float>& output, const Tensor<float>& target) {
  if (gives_probabilities(network)) return {.kind = LossKind::cross_entropy};
  return {.kind = are_class_numbers(output, target) ? LossKind::cross_entropy_logits : LossKind::mse};
}

/// Rows that the loss averages over: those of class -1 do not count.
double scored_rows(const Tensor<float>& output, const Tensor<float>& target) {
  const auto rows = static_cast<std::ptrdiff_t>(output_rows(output));
  if (!are_class_numbers(output, target)) return static_cast<double>(rows);
  return static_cast<double>(rows - std::ranges::count(target.values(), -1.0f));
}

}  // namespace

NetworkScore score_network(Network& network, const Dataset& data, const std::optional<Loss>& loss, std::size_t batch) {
  check_dataset(data);
  if (batch == 0) throw UsageError("batches of 0 examples");
  std::optional<Loss> used = loss;
  double sum = 0, rows = 0;
  bool classes = false;
  for (std::size_t first = 0; first < data.size(); first += batch) {
    const std::size_t count = std::min(batch, data.size() - first);
    const Tensor<float> y = precision::examples(data.y, first, count);
    const Tensor<float>& output = network.forward(precision::examples(data.x, first, count));
    if (!used) used = default_loss(network, output, y);
    const bool numbers = are_class_numbers(output, y);
    classes = numbers || (output.size() == data.y.size() / data.size() * count && precision::is_one_hot(data.y));
    const double weight = scored_rows(output, y);
    if (weight == 0) continue;
    const bool spread = numbers && used->kind == LossKind::cross_entropy;
    sum += weight * evaluate_loss(*used, output, spread ? one_hot_rows(y, output) : y);
    rows += weight;
  }
  NetworkScore score{.loss_kind = used->kind, .loss = rows == 0 ? 0 : sum / rows};
  if (classes) score.accuracy = accuracy(network, data, batch);
  return score;
}

}  // namespace imago
