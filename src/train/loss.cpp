#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/names.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "imago/train.h"
#include "kernels/ops.h"
#include "train/batches.h"
#include "train/loss.h"

namespace imago {

namespace {

constexpr std::pair<LossKind, std::string_view> kLosses[] = {
    {LossKind::mse, "mse"},
    {LossKind::cross_entropy, "cross_entropy"},
    {LossKind::cross_entropy, "crossentropy"},
    {LossKind::cross_entropy_logits, "cross_entropy_logits"},
    {LossKind::multi_head_softmax_ce, "multi_head_softmax_ce"},
};

constexpr std::size_t kGrain = 16384;  // elements worth a thread: some 10 µs

std::size_t rows_of(const Tensor<float>& output) {
  const std::size_t cols = output.shape().last();
  return cols == 0 ? 0 : output.size() / cols;
}

/// Rows of `cols` elements worth a thread.
std::size_t row_grain(std::size_t cols) { return std::max<std::size_t>(1, kGrain / std::max<std::size_t>(1, cols)); }

double mean_squared_error(std::span<const float> output, std::span<const float> target, std::span<float> gradient) {
  const float factor = 2 / static_cast<float>(output.size());
  const double sum = ordered_sum(output.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    double squares = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const float difference = output[i] - target[i];
      squares += static_cast<double>(difference) * difference;
      if (!gradient.empty()) gradient[i] = difference * factor;
    }
    return squares;
  });
  return sum / static_cast<double>(output.size());
}

double cross_entropy(std::span<const float> output, std::span<const float> target, std::span<float> gradient) {
  const double count = static_cast<double>(output.size());
  const double sum = ordered_sum(output.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    double entropy = 0;
    for (std::size_t i = begin; i < end; ++i) {
      const double probability = output[i] + 1e-10;
      entropy -= target[i] * std::log(probability);
      if (!gradient.empty()) gradient[i] = static_cast<float>(-target[i] / probability / count);
    }
    return entropy;
  });
  return sum / count;
}

}  // namespace

void check_sizes(const Loss& loss, const Shape& output, const Shape& target) {
  if (output.elements() == 0) throw ShapeError(fmt::format("loss {}: the output is empty", name(loss.kind)));
  if (output.elements() == target.elements()) return;
  if (loss.kind != LossKind::cross_entropy_logits) {
    throw ShapeError(fmt::format("loss {}: outputs {} and targets {} differ in size", name(loss.kind),
                                 output.to_string(), target.to_string()));
  }
  const std::size_t rows = output.elements() / output.last();
  if (target.elements() != rows) {
    throw ShapeError(fmt::format(
        "loss cross_entropy_logits: logits {} need {} class numbers or as many shares as logits, not targets {}",
        output.to_string(), rows, target.to_string()));
  }
}

std::size_t count_scored(std::span<const float> classes, std::size_t cols) {
  std::size_t scored = 0;
  for (std::size_t row = 0; row < classes.size(); ++row) {
    const float number = classes[row];
    if (number == -1) continue;
    if (!(number >= 0 && number < static_cast<float>(cols)) || number != std::floor(number)) {
      throw UsageError(fmt::format(
          "loss cross_entropy_logits: target {} of row {} is neither a class of 0 … {} nor -1, which skips the row",
          number, row, static_cast<std::ptrdiff_t>(cols) - 1));
    }
    ++scored;
  }
  return scored;
}

void check_heads(const Loss& loss, std::size_t rows, std::size_t cols) {
  std::size_t width = 0;
  for (const int head : loss.heads) {
    if (head < 1) throw UsageError(fmt::format("loss multi_head_softmax_ce: a head cannot be {} wide", head));
    width += static_cast<std::size_t>(head);
  }
  if (width != cols) {
    throw ShapeError(fmt::format("loss multi_head_softmax_ce: {} heads are {} wide together, rows of the output {}",
                                 loss.heads.size(), width, cols));
  }
  const std::size_t wanted = rows * loss.heads.size();
  if (!loss.mask.empty() && loss.mask.size() != wanted) {
    throw ShapeError(fmt::format("loss multi_head_softmax_ce: the mask has {} values, not {} rows × {} heads",
                                 loss.mask.size(), rows, loss.heads.size()));
  }
}

namespace {

/// log(sum(exp z)) of a row, given its softmax p: at the largest logit, p = 1 / sum(exp(z - max)), which never
/// underflows.
double log_sum_exp(std::span<const float> logits, std::span<const float> softmax) {
  const std::size_t at = static_cast<std::size_t>(std::ranges::max_element(logits) - logits.begin());
  return static_cast<double>(logits[at]) - std::log(static_cast<double>(softmax[at]));
}

/// `p` holds the softmax of the rows and becomes the gradient.
double entropy_of_classes(std::span<const float> output, std::span<const float> classes, std::size_t cols,
                          std::span<float> p) {
  const std::size_t scored = count_scored(classes, cols);
  const float factor = scored == 0 ? 0 : 1 / static_cast<float>(scored);
  const double sum = ordered_sum(classes.size(), row_grain(cols), [&](std::size_t begin, std::size_t end) {
    double entropy = 0;
    for (std::size_t row = begin; row < end; ++row) {
      const std::span<float> values = p.subspan(row * cols, cols);
      if (classes[row] == -1) {
        std::ranges::fill(values, 0.0f);
        continue;
      }
      const std::span<const float> logits = output.subspan(row * cols, cols);
      const std::size_t wanted = static_cast<std::size_t>(classes[row]);
      entropy += log_sum_exp(logits, values) - static_cast<double>(logits[wanted]);
      values[wanted] -= 1;
      for (float& value : values) value *= factor;
    }
    return entropy;
  });
  return scored == 0 ? 0 : sum / static_cast<double>(scored);
}

/// The same for targets that are distributions.
double entropy_of_shares(std::span<const float> output, std::span<const float> target, std::size_t cols,
                         std::span<float> p) {
  const std::size_t rows = output.size() / cols;
  const double sum = ordered_sum(rows, row_grain(cols), [&](std::size_t begin, std::size_t end) {
    double entropy = 0;
    for (std::size_t row = begin; row < end; ++row) {
      const std::span<float> values = p.subspan(row * cols, cols);
      const std::span<const float> logits = output.subspan(row * cols, cols);
      const std::span<const float> shares = target.subspan(row * cols, cols);
      const double normalizer = log_sum_exp(logits, values);
      const float total = static_cast<float>(std::accumulate(shares.begin(), shares.end(), 0.0));
      for (std::size_t i = 0; i < cols; ++i) {
        entropy += shares[i] * (normalizer - static_cast<double>(logits[i]));
        values[i] = (values[i] * total - shares[i]) / static_cast<float>(rows);
      }
    }
    return entropy;
  });
  return sum / static_cast<double>(rows);
}

double cross_entropy_of_logits(const Tensor<float>& output, const Tensor<float>& target, std::span<float> gradient) {
  const std::size_t rows = rows_of(output);
  const bool by_class = target.size() == rows;
  std::vector<float> scratch(gradient.empty() ? output.size() : 0);
  const std::span<float> p = gradient.empty() ? std::span<float>(scratch) : gradient;
  std::ranges::copy(output.values(), p.begin());
  const std::size_t cols = output.shape().last();
  kernels::softmax(p, cols);
  return by_class ? entropy_of_classes(output.values(), target.values(), cols, p)
                  : entropy_of_shares(output.values(), target.values(), cols, p);
}

/// Softmax of one head of one row, its loss, and, unless empty, its gradient.
double head_entropy(std::span<const float> logits, std::span<const float> target, std::span<float> gradient,
                    double rows) {
  const double largest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  double entropy = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(static_cast<double>(logits[i]) - largest) / sum;
    entropy -= static_cast<double>(target[i]) * std::log(p + 1e-7);
    if (!gradient.empty()) gradient[i] = static_cast<float>((p - static_cast<double>(target[i])) / rows);
  }
  return entropy;
}

double multi_head_entropy(const Loss& loss, const Tensor<float>& output, const Tensor<float>& target,
                          std::span<float> gradient) {
  const std::size_t rows = rows_of(output), cols = output.shape().last();
  check_heads(loss, rows, cols);
  const double sum = ordered_sum(rows, row_grain(cols), [&](std::size_t begin, std::size_t end) {
    double entropy = 0;
    for (std::size_t row = begin; row < end; ++row) {
      std::size_t first = row * cols;
      for (std::size_t head = 0; head < loss.heads.size(); ++head) {
        const std::size_t width = static_cast<std::size_t>(loss.heads[head]);
        const std::span<float> slice = gradient.empty() ? gradient : gradient.subspan(first, width);
        if (loss.mask.empty() || loss.mask[row * loss.heads.size() + head] > 0.5f) {
          entropy += head_entropy(output.values().subspan(first, width), target.values().subspan(first, width), slice,
                                  static_cast<double>(rows));
        } else {
          std::ranges::fill(slice, 0.0f);
        }
        first += width;
      }
    }
    return entropy;
  });
  return sum / static_cast<double>(rows);
}

}  // namespace

std::string_view name(LossKind kind) noexcept { return name_in(kLosses, kind); }

LossKind parse_loss(std::string_view text) { return parse_in(kLosses, text, "loss"); }

double evaluate_loss(const Loss& loss, const Tensor<float>& output, const Tensor<float>& target,
                     Tensor<float>* gradient) {
  check_sizes(loss, output.shape(), target.shape());
  if (gradient != nullptr) gradient->resize(output.shape());
  const std::span<float> slopes = gradient == nullptr ? std::span<float>() : gradient->values();
  switch (loss.kind) {
    case LossKind::mse: return mean_squared_error(output.values(), target.values(), slopes);
    case LossKind::cross_entropy: return cross_entropy(output.values(), target.values(), slopes);
    case LossKind::cross_entropy_logits: return cross_entropy_of_logits(output, target, slopes);
    case LossKind::multi_head_softmax_ce: return multi_head_entropy(loss, output, target, slopes);
  }
  throw UsageError(fmt::format("{} is not a loss", static_cast<int>(loss.kind)));
}

namespace {

std::size_t largest(std::span<const float> values) {
  return static_cast<std::size_t>(std::ranges::max_element(values) - values.begin());
}

struct Score {
  std::size_t rows = 0, right = 0;
};

Score score(const Tensor<float>& output, const Tensor<float>& target) {
  const std::size_t cols = output.shape().last(), rows = rows_of(output);
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
