// The operations in plain C++, in float64, rounded once: the definition of correct.

#include "kernels/folders.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "imago/numeric.h"
#include "quant/int8_scale.h"

namespace imago::kernels::ref {

namespace {

double activation_of(Activation function, double x) noexcept {
  const auto sigmoid = [](double t) { return 1 / (1 + std::exp(-t)); };
  switch (function) {
    case Activation::linear: return x;
    case Activation::relu: return x < 0 ? 0 : x;
    case Activation::relu2: return x < 0 ? 0 : x * x;
    case Activation::leaky_relu: return x < 0 ? 0.01 * x : x;
    case Activation::silu: return x * sigmoid(x);
    case Activation::gelu: {  // 0.5 · (1 + tanh u) is sigmoid(2u), without the digits lost where tanh u is near -1
      const double u = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x * sigmoid(2 * u);
    }
    case Activation::tanh: return std::tanh(x);
    case Activation::sigmoid: return sigmoid(x);
    case Activation::gelu_erf: return x / 2 * std::erfc(-x / std::numbers::sqrt2);
    case Activation::clamped_swish: {
      const double limited = std::min(x, static_cast<double>(kSwishLimit));
      return limited * sigmoid(static_cast<double>(kSwishSlope) * limited);
    }
  }
  return x;
}

void softmax_row(const SoftmaxArgs& a, float* x) noexcept {
  constexpr double kMasked = -std::numeric_limits<double>::infinity();
  const double scale = a.scale, cap = a.cap;
  const auto score = [&](float v) {
    const double t = scale * static_cast<double>(v);
    return t == kMasked || !(cap > 0) ? t : cap * std::tanh(t / cap);
  };
  double largest = kMasked;
  for (std::size_t i = 0; i < a.cols; ++i) largest = std::max(largest, score(x[i]));
  const double base = largest == kMasked ? 0 : largest;
  double sum = 0;
  for (std::size_t i = 0; i < a.cols; ++i) sum += std::exp(score(x[i]) - base);
  for (std::size_t i = 0; i < a.cols; ++i) {
    x[i] = sum == 0 ? 0.0f : static_cast<float>(std::exp(score(x[i]) - base) / sum);
  }
}

}  // namespace

void run(const RmsNormArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) {
    const float* x = a.x + row * a.cols;
    double squares = 0;
    for (std::size_t i = 0; i < a.cols; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const double root = std::sqrt(squares / static_cast<double>(a.cols) + static_cast<double>(a.eps));
    for (std::size_t i = 0; i < a.cols; ++i) {
      const double weight =
          a.weight == nullptr ? 1 : static_cast<double>(a.weight[i]) + static_cast<double>(a.weight_offset);
      a.y[row * a.cols + i] = static_cast<float>(static_cast<double>(x[i]) / root * weight);
    }
  }
}

void run(const LayerNormArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) {
    const float* x = a.x + row * a.cols;
    const double count = static_cast<double>(a.cols);
    double sum = 0;
    for (std::size_t i = 0; i < a.cols; ++i) sum += static_cast<double>(x[i]);
    const double mean = sum / count;
    double squares = 0;
    for (std::size_t i = 0; i < a.cols; ++i) {
      squares += (static_cast<double>(x[i]) - mean) * (static_cast<double>(x[i]) - mean);
    }
    const double root = std::sqrt(squares / count + static_cast<double>(a.eps));
    for (std::size_t i = 0; i < a.cols; ++i) {
      const double beta = a.beta == nullptr ? 0 : static_cast<double>(a.beta[i]);
      const double normal = (static_cast<double>(x[i]) - mean) / root;
      a.y[row * a.cols + i] = static_cast<float>(normal * static_cast<double>(a.gamma[i]) + beta);
    }
  }
}

void run(const SoftmaxArgs& a) noexcept {
  for (std::size_t row = 0; row < a.rows; ++row) softmax_row(a, a.x + row * a.cols);
}

void run(const RopeArgs& a) noexcept {
  const std::size_t half = a.rotary / 2;
  for (std::size_t head = 0; head < a.heads; ++head) {
    float* x = a.x + head * a.head_values;
    for (std::size_t j = 0; j < half; ++j) {
      float& first = a.pairs == RopePairs::halves ? x[j] : x[2 * j];
      float& second = a.pairs == RopePairs::halves ? x[j + half] : x[2 * j + 1];
      const double u = first, v = second, cos = a.cos_sin[j], sin = a.cos_sin[half + j];
      first = static_cast<float>(u * cos - v * sin);
      second = static_cast<float>(u * sin + v * cos);
    }
  }
}

void run(const ActivateArgs& a) noexcept {
  for (std::size_t i = 0; i < a.count; ++i) {
    const double value = activation_of(a.function, static_cast<double>(a.x[i]));
    double up = a.up == nullptr ? 1 : static_cast<double>(a.up[i]);
    if (a.up != nullptr && a.function == Activation::clamped_swish) {
      constexpr double kLimit = kSwishLimit;
      up = 1 + std::clamp(up, -kLimit, kLimit);
    }
    a.y[i] = static_cast<float>(value * up);
  }
}

void run(const AddScaledArgs& a) noexcept {
  for (std::size_t i = 0; i < a.count; ++i) {
    const double product = static_cast<double>(a.factor) * static_cast<double>(a.x[i]);
    a.y[i] = static_cast<float>(product + static_cast<double>(a.y[i]));
  }
}

void run(const ScaleArgs& a) noexcept {
  for (std::size_t i = 0; i < a.count; ++i) a.y[i] = a.x[i] * a.factor;
}

#include "kernels/generic/update.inl.h"

void run(const QuantizeArgs& a) noexcept {
  for (std::size_t begin = 0; begin < a.cols; begin += 32) {
    const std::size_t end = std::min(begin + 32, a.cols);
    std::fill_n(a.q + begin, 32, std::int8_t{0});
    const float scale = quant::quantize_to_int8({a.x + begin, end - begin}, a.q + begin);
    int sums[2] = {0, 0};
    for (std::size_t i = 0; i < 32; ++i) sums[i / 16] += a.q[begin + i];
    a.scales[begin / 32] = scale;
    for (std::size_t half = 0; half < 2; ++half) {
      a.sums16[begin / 16 + half] = scale * static_cast<float>(sums[half]);
    }
  }
}

}  // namespace imago::kernels::ref
