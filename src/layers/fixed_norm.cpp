#include "layers/fixed_norm.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"

namespace imago::layers {

namespace {

// Rows worth a thread: some 16000 values.
std::size_t grain(std::size_t width) { return std::max<std::size_t>(1, 16384 / width); }

double reciprocal_rms(const float* x, std::size_t width, double eps) noexcept {
  double squares = 0;
  for (std::size_t i = 0; i < width; ++i) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return 1 / std::sqrt(squares / static_cast<double>(width) + eps);
}

}  // namespace

double effective_eps(double rms_norm_eps) noexcept { return rms_norm_eps > 0 ? rms_norm_eps : 1e-6; }

void norm_row(const float* x, std::span<const float> weight, double eps, float* y) noexcept {
  const float factor = static_cast<float>(reciprocal_rms(x, weight.size(), eps));
  for (std::size_t i = 0; i < weight.size(); ++i) y[i] = x[i] * factor * weight[i];
}

void norm_row_backward(const float* x, std::span<const float> weight, double eps, const float* grad_y,
                       float* grad_x) noexcept {
  const std::size_t width = weight.size();
  const double factor = reciprocal_rms(x, width, eps);
  double along = 0;  // the part of the gradient that lies along x: the norm takes it away
  for (std::size_t i = 0; i < width; ++i)
    along += static_cast<double>(grad_y[i] * weight[i]) * static_cast<double>(x[i]);
  const float straight = static_cast<float>(factor);
  const float inward = static_cast<float>(along * factor * factor * factor / static_cast<double>(width));
  for (std::size_t i = 0; i < width; ++i) grad_x[i] = grad_y[i] * weight[i] * straight - x[i] * inward;
}

void norm_rows(std::span<const float> x, std::span<const float> weight, double eps, std::span<float> y) {
  const std::size_t width = weight.size();
  parallel_for(x.size() / width, grain(width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) norm_row(&x[row * width], weight, eps, &y[row * width]);
  });
}

void norm_rows_backward(std::span<const float> x, std::span<const float> weight, double eps,
                        std::span<const float> grad_y, std::span<float> grad_x) {
  const std::size_t width = weight.size();
  parallel_for(x.size() / width, grain(width), [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) {
      norm_row_backward(&x[row * width], weight, eps, &grad_y[row * width], &grad_x[row * width]);
    }
  });
}

}  // namespace imago::layers
