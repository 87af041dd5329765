// Short convolutions and scans in plain C++, token by token as they are defined, in float64; states are kept in
// float32.

#include <algorithm>
#include <cmath>

#include "kernels/folders.h"

namespace imago::kernels::ref {

void run(const ShortConvArgs& a) noexcept {
  const std::size_t before = a.kernel - 1;
  for (std::size_t c = 0; c < a.channels; ++c) {
    double seen[kMaxTaps] = {};
    for (std::size_t k = 0; k < before; ++k) seen[k] = static_cast<double>(a.state[k * a.stride + c]);
    for (std::size_t t = 0; t < a.tokens; ++t) {
      seen[before] = static_cast<double>(a.x[t * a.stride + c]);
      double sum = a.bias == nullptr ? 0 : static_cast<double>(a.bias[c]);
      for (std::size_t k = 0; k < a.kernel; ++k) sum += static_cast<double>(a.taps[k * a.stride + c]) * seen[k];
      if (a.activation == Activation::silu) sum /= 1 + std::exp(-sum);
      if (t >= a.first_result) a.y[(t - a.first_result) * a.stride + c] = static_cast<float>(sum);
      for (std::size_t k = 0; k < before; ++k) seen[k] = seen[k + 1];
    }
    for (std::size_t k = 0; k < before; ++k) a.state[k * a.stride + c] = static_cast<float>(seen[k]);
  }
}

void run(const StepSizeArgs& a) noexcept {
  for (std::size_t i = 0; i < a.rows * a.cols; ++i) {
    const double x = static_cast<double>(a.x[i]) + static_cast<double>(a.bias[i % a.cols]);
    const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
    const double step = std::clamp(softplus, static_cast<double>(a.low), static_cast<double>(a.high));
    if (a.decay != nullptr) a.decay[i] = static_cast<float>(std::exp(step * static_cast<double>(a.rate[i % a.cols])));
    if (a.step != nullptr) a.step[i] = static_cast<float>(step);
  }
}

void run(const LinearScanArgs& a) noexcept {
  for (std::size_t t = 0; t < a.tokens; ++t) {
    const float* const q = a.q + t * a.stride;
    const float* const k = a.k + t * a.stride;
    const double decay = a.decay[t * a.scalar_stride], strength = a.strength[t * a.scalar_stride];
    for (std::size_t j = 0; j < a.values; ++j) {
      const double value = a.v[t * a.stride + j];
      double found = 0;
      for (std::size_t i = 0; a.delta && i < a.keys; ++i) {
        found += static_cast<double>(k[i]) * static_cast<double>(a.state[i * a.values + j]);
      }
      const double delta = strength * (value - decay * found);
      double sum = static_cast<double>(a.skip) * value;
      for (std::size_t i = 0; i < a.keys; ++i) {
        float& s = a.state[i * a.values + j];
        s = static_cast<float>(decay * static_cast<double>(s) + static_cast<double>(k[i]) * delta);
        sum += static_cast<double>(s) * static_cast<double>(q[i]);
      }
      if (t >= a.first_result) a.y[(t - a.first_result) * a.y_stride + j] = static_cast<float>(sum);
    }
  }
}

void run(const ChannelScanArgs& a) noexcept {
  for (std::size_t t = 0; t < a.tokens; ++t) {
    for (std::size_t c = 0; c < a.channels; ++c) {
      const double x = a.x[t * a.stride + c], step = a.step[t * a.stride + c];
      double sum = static_cast<double>(a.skip[c]) * x;
      for (std::size_t n = 0; n < a.states; ++n) {
        float& h = a.state[n * a.stride + c];
        const double decay = std::exp(step * static_cast<double>(a.rates[n * a.stride + c]));
        h = static_cast<float>(decay * static_cast<double>(h) +
                               step * x * static_cast<double>(a.b[t * a.b_stride + n]));
        sum += static_cast<double>(h) * static_cast<double>(a.r[t * a.b_stride + n]);
      }
      if (t >= a.first_result) a.y[(t - a.first_result) * a.stride + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace imago::kernels::ref
