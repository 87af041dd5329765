// The operations between products over doubles.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"

namespace imago::kernels {

namespace {

constexpr std::size_t kGrain = 4096;  // values worth a thread

void check_size(std::size_t size, std::size_t wanted) {
  if (size != wanted) throw ShapeError(fmt::format("[float64] an array has {} values, not {}", size, wanted));
}

/// Calls body(x of a row, y of a row).
template <class Body>
void for_each_row(std::span<const double> x, std::span<double> y, std::size_t cols, const Body& body) {
  check_size(y.size(), x.size());
  if (cols == 0 || x.size() % cols != 0) {
    throw ShapeError(fmt::format("[float64] {} values are not whole rows of {}", x.size(), cols));
  }
  const auto run = [&](std::size_t row) { body(x.subspan(row * cols, cols), y.subspan(row * cols, cols)); };
  parallel_rows(x.size() / cols, cols, run, kGrain);
}

/// y[i] = value(i).
template <class Value>
void for_each_value(std::span<double> y, const Value& value) {
  parallel_for(y.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) y[i] = value(i);
  });
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double gelu(double x) {
  constexpr double kRoot = 0.79788456080286535588;  // sqrt(2 / pi)
  return 0.5 * x * (1 + std::tanh(kRoot * (x + 0.044715 * x * x * x)));
}

double value_of(Activation function, double x) {
  switch (function) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
    case Activation::leaky_relu: return x < 0 ? 0.01 * x : x;
    case Activation::silu: return std::isinf(x) && x < 0 ? 0 : x * sigmoid(x);
    case Activation::gelu: return std::isinf(x) && x < 0 ? 0 : gelu(x);
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::gelu_erf: return std::isinf(x) && x < 0 ? 0 : x / 2 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::clamped_swish: break;  // no layer has it
  }
  return x;
}

}  // namespace

void rms_norm(std::span<const double> x, std::span<const double> weight, double eps, std::span<double> y) {
  for_each_row(x, y, weight.size(), [&](std::span<const double> from, std::span<double> to) {
    double squares = 0;
    for (const double value : from) squares += value * value;
    const double factor = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + eps);
    for (std::size_t i = 0; i < weight.size(); ++i) to[i] = from[i] * factor * weight[i];
  });
}

void layer_norm(std::span<const double> x, std::span<const double> gamma, std::span<const double> beta, double eps,
                std::span<double> y) {
  check_size(beta.size(), gamma.size());
  const double count = static_cast<double>(gamma.size());
  for_each_row(x, y, gamma.size(), [&](std::span<const double> from, std::span<double> to) {
    double sum = 0, squares = 0;
    for (const double value : from) sum += value;
    const double mean = sum / count;
    for (const double value : from) squares += (value - mean) * (value - mean);
    const double factor = 1 / std::sqrt(squares / count + eps);
    for (std::size_t i = 0; i < gamma.size(); ++i) to[i] = (from[i] - mean) * factor * gamma[i] + beta[i];
  });
}

void softmax(std::span<double> x, std::size_t cols, double scale) {
  for_each_row(x, x, cols, [&](std::span<const double>, std::span<double> row) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (const double value : row) largest = std::max(largest, value);
    const bool all_masked = std::isinf(largest) && largest < 0;
    for (double& value : row) sum += value = all_masked ? 0 : std::exp((value - largest) * scale);
    for (double& value : row) value /= all_masked ? 1 : sum;
  });
}

void activate(Activation function, std::span<const double> x, std::span<double> y) {
  check_size(y.size(), x.size());
  for_each_value(y, [&](std::size_t i) { return value_of(function, x[i]); });
}

void activate_mul(Activation function, std::span<const double> gate, std::span<const double> up, std::span<double> y) {
  check_size(gate.size(), y.size());
  check_size(up.size(), y.size());
  for_each_value(y, [&](std::size_t i) { return value_of(function, gate[i]) * up[i]; });
}

void add(std::span<const double> x, std::span<double> y) { add_scaled(x, 1, y); }

void add_scaled(std::span<const double> x, double factor, std::span<double> y) {
  check_size(x.size(), y.size());
  for_each_value(y, [&](std::size_t i) { return y[i] + factor * x[i]; });
}

void scale(std::span<double> y, double factor) {
  for_each_value(y, [&](std::size_t i) { return y[i] * factor; });
}

void copy(std::span<const double> from, std::span<double> to) {
  check_size(from.size(), to.size());
  std::ranges::copy(from, to.begin());
}

}  // namespace imago::kernels
