// Softmax, ten variants. All but Sparse and Entmax are the kernels' softmax of prepared values: divided by the
// temperature, masked, with noise. Backward needs the probabilities of forward alone, which are state.post.

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/settings.h"
#include "layers/softmax_variants.h"
#include "weights/random.h"

namespace imago::layers {

SoftmaxSettings softmax_settings(const LayerConfig& c) {
  const bool grid = c.softmax_type == SoftmaxType::grid || c.softmax_type == SoftmaxType::hierarchical;
  const bool levels = c.softmax_type == SoftmaxType::hierarchical && !c.hierarchy_levels.empty();
  int rows = grid ? c.softmax_rows : 0;
  int cols = grid ? c.softmax_cols : 0;
  if (levels) {
    rows = 1;  // as many as there are
    cols = c.hierarchy_levels.back();
  }
  if (rows < 0 || cols < 0) throw UsageError(fmt::format("Softmax: a grid of {} × {} has a negative size", rows, cols));
  const double temperature = c.temperature == 0 ? 1 : c.temperature;
  if (const float narrow = static_cast<float>(temperature); !std::isfinite(narrow) || narrow == 0) {
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
          .cols = whole ? static_cast<std::size_t>(cols) : 0,
          .noisy = c.softmax_type == SoftmaxType::gumbel,
          .mask = c.softmax_type == SoftmaxType::masked && !c.mask.empty() ? &c.mask : nullptr};
}

std::size_t softmax_cols(const Layer& layer, const SoftmaxSettings& settings, const Shape& x) {
  const std::size_t cols = settings.rows == 0 ? x.last() : settings.cols;
  if (settings.rows != 0 && x.elements() % checked_mul(settings.rows, settings.cols, "softmax grid") != 0) {
    throw ShapeError(fmt::format("{}: expected a whole number of grids of {} × {}, got an input of shape {}",
                                 describe(layer), settings.rows, settings.cols, x.to_string()));
  }
  if (settings.mask != nullptr && settings.mask->size() > cols && x.elements() != 0) {
    throw ShapeError(
        fmt::format("{}: a mask of {} values for rows of {}", describe(layer), settings.mask->size(), cols));
  }
  return cols;
}

namespace {

/// The largest value; NaN if the row holds a NaN or its largest value is not finite, since it then has no result.
template <class T>
double peak(std::span<const T> z) noexcept {
  T largest = -std::numeric_limits<T>::infinity();
  for (const T value : z) {
    if (std::isnan(value)) return std::numeric_limits<double>::quiet_NaN();
    largest = std::max(largest, value);
  }
  return std::isfinite(largest) ? static_cast<double>(largest) : std::numeric_limits<double>::quiet_NaN();
}

/// x^exponent for x > 0; the default alpha, 1.5, needs a square and a square root only.
double power(double x, double exponent) noexcept {
  if (exponent == 2) return x * x;
  if (exponent == 0.5) return std::sqrt(x);
  if (exponent == 1) return x;
  return std::pow(x, exponent);
}

/// One row of entmax. Values are taken relative to the largest, so that tau is in [-1, 0).
template <class T>
struct EntmaxRow {
  std::span<const T> z;
  double largest, factor, exponent;

  double probability(std::size_t i, double tau) const noexcept {
    const double above = factor * (static_cast<double>(z[i]) - largest) - tau;
    return above > 0 ? power(above, exponent) : 0;
  }
  double sum(double tau) const noexcept {
    double total = 0;
    for (std::size_t i = 0; i < z.size(); ++i) total += probability(i, tau);
    return total;
  }
};

/// Bisects between tau = -1, where the largest value alone gives 1, and the tau where it gives 1/n and the others at
/// most that.
template <class T>
double find_tau(const EntmaxRow<T>& row) noexcept {
  double low = -1;
  double high = -std::pow(static_cast<double>(row.z.size()), -row.factor);
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (!(middle > low && middle < high)) return low;
    (row.sum(middle) >= 1 ? low : high) = middle;
  }
}

}  // namespace

template <class T>
void add_gumbel_noise(std::span<T> z, std::uint64_t seed, std::size_t first) {
  for (std::size_t i = 0; i < z.size(); ++i) {
    const double u = static_cast<double>(derive_seed(seed, first + i) >> 11) * 0x1p-53;  // below 1
    z[i] += static_cast<T>(-std::log(-std::log(std::max(u, 1e-10))));
  }
}

template <class T>
void sparsemax(std::span<const T> z, std::span<T> p) {
  assert(z.size() == p.size() && z.data() != p.data());
  const double largest = peak(z);
  if (std::isnan(largest)) {
    std::ranges::fill(p, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  std::ranges::copy(z, p.begin());
  std::ranges::sort(p, std::greater<>());
  double sum = 0;
  double tau = 0;
  for (std::size_t k = 0; k < p.size(); ++k) {  // relative to the largest: no digits are lost to a common offset
    const double value = static_cast<double>(p[k]) - largest;
    const double mean = (sum + value - 1) / static_cast<double>(k + 1);
    if (!(value > mean)) break;
    sum += value;
    tau = mean;
  }
  for (std::size_t i = 0; i < z.size(); ++i) {
    p[i] = static_cast<T>(std::max(0.0, static_cast<double>(z[i]) - largest - tau));
  }
}

template <class T>
void entmax(std::span<const T> z, double alpha, std::span<T> p) {
  assert(z.size() == p.size() && alpha > 1 && alpha < 2);
  const EntmaxRow<T> row{.z = z, .largest = peak(z), .factor = alpha - 1, .exponent = 1 / (alpha - 1)};
  if (std::isnan(row.largest)) {
    std::ranges::fill(p, std::numeric_limits<T>::quiet_NaN());
    return;
  }
  const double tau = find_tau(row);
  for (std::size_t i = 0; i < z.size(); ++i) p[i] = static_cast<T>(row.probability(i, tau));
}

template void add_gumbel_noise(std::span<float>, std::uint64_t, std::size_t);
template void add_gumbel_noise(std::span<double>, std::uint64_t, std::size_t);
template void sparsemax(std::span<const float>, std::span<float>);
template void sparsemax(std::span<const double>, std::span<double>);
template void entmax(std::span<const float>, double, std::span<float>);
template void entmax(std::span<const double>, double, std::span<double>);

void simplex_backward(std::span<const float> p, double alpha, float temperature, std::span<const float> grad_p,
                      std::span<float> grad_z) {
  const auto slope = [&](std::size_t i) {
    return p[i] > 0 ? power(static_cast<double>(p[i]), 2 - alpha) : static_cast<double>(p[i]);  // NaN stays
  };
  double slopes = 0;
  double weighted = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double s = slope(i);
    slopes += s;
    weighted += s * static_cast<double>(grad_p[i]);
  }
  const double mean = slopes == 0 ? 0 : weighted / slopes;  // a row of zeros: softmax of nothing but -inf
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double gradient = slope(i) * (static_cast<double>(grad_p[i]) - mean);
    grad_z[i] = static_cast<float>(gradient / static_cast<double>(temperature));
  }
}

namespace {

constexpr std::size_t kGrain = 4096;  // values worth a thread: each takes an exponential, a logarithm or part of a sort
constexpr double kMaskedOut = -1e9;   // in place of a value whose mask is false

WeightShape weight_shape_of(const LayerConfig& config) {
  softmax_settings(config);
  return no_weights(config);
}

/// body(first, row) for each row of `cols` values.
template <class T, class Body>
void for_each_row(std::span<T> values, std::size_t cols, const Body& body) {
  parallel_rows(
      values.size() / cols, cols, [&](std::size_t row) { body(row * cols, values.subspan(row * cols, cols)); }, kGrain);
}

template <class T>
void replace_where_masked(const std::vector<bool>& mask, double value, std::span<T> row) {
  for (std::size_t i = 0; i < mask.size(); ++i) {
    if (!mask[i]) row[i] = static_cast<T>(value);
  }
}

template <class T>
void forward(Layer& layer, const Tensor<T>& x, const Tensor<T>*, LayerState& state, Run& run) {
  const SoftmaxSettings settings = softmax_settings(layer.config);
  const std::size_t cols = softmax_cols(layer, settings, x.shape());
  LayerValues<T>& own = state.values<T>();
  own.post.resize(x.shape());
  if (x.size() == 0) return;

  const bool simple = settings.alpha == 1;
  const bool sparse = settings.alpha == 2;
  // Sparsemax sorts in its result, so its input is kept apart.
  own.scratch.resize(1);
  if (sparse) own.scratch[0].resize(x.shape());
  const std::span<T> z = sparse ? own.scratch[0].values() : own.post.values();
  const T temperature = static_cast<T>(settings.temperature);
  for_each_row(z, cols, [&](std::size_t first, std::span<T> row) {
    for (std::size_t i = 0; i < cols; ++i) row[i] = x[first + i] / temperature;
    if (settings.mask != nullptr) replace_where_masked(*settings.mask, kMaskedOut, row);
    if (settings.noisy) add_gumbel_noise(row, run.seed, first);
    if (sparse) sparsemax<T>(row, own.post.values().subspan(first, cols));
    if (!sparse && !simple) entmax<T>(row, settings.alpha, row);
  });
  if (simple) kernels::softmax(z, cols);
  if (settings.noisy) run.seed = derive_seed(run.seed, x.size());  // no draw had this index
}

void backward(Layer& layer, const Tensor<float>& x, const Tensor<float>*, const Tensor<float>& grad_output,
              LayerState& state, LayerGradient&, Run&) {
  const SoftmaxSettings settings = softmax_settings(layer.config);
  const std::size_t cols = softmax_cols(layer, settings, x.shape());
  state.grad_input.resize(x.shape());
  if (x.size() == 0) return;

  for_each_row(state.grad_input.values(), cols, [&](std::size_t first, std::span<float> row) {
    simplex_backward(state.post.values().subspan(first, cols), settings.alpha, static_cast<float>(settings.temperature),
                     grad_output.values().subspan(first, cols), row);
    if (settings.mask != nullptr) replace_where_masked(*settings.mask, 0, row);
  });
}

}  // namespace

const LayerFunctions kSoftmax{LayerType::softmax, weight_shape_of, nullptr, forward<float>, forward<double>, backward};

}  // namespace imago::layers
