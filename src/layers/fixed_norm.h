#pragma once

// RMS norms inside other layers (q_norm, k_norm, inner_norm). Their weights are settings, not parameters: gradients
// pass through them, and none is kept for them.

#include <cstddef>
#include <span>

namespace imago::layers {

/// rms_norm_eps as it is used: 1e-6 unless positive.
double effective_eps(double rms_norm_eps) noexcept;

/// y = x / sqrt(mean(x²) + eps) · weight for one row of weight.size() values. `y` may be `x`.
void norm_row(const float* x, std::span<const float> weight, double eps, float* y) noexcept;

/// grad_x from grad_y for one row; `grad_x` may be `grad_y`.
void norm_row_backward(const float* x, std::span<const float> weight, double eps, const float* grad_y,
                       float* grad_x) noexcept;

/// The same for many rows, on the pool. All spans but `weight` have the length of `x`.
void norm_rows(std::span<const float> x, std::span<const float> weight, double eps, std::span<float> y);
void norm_rows_backward(std::span<const float> x, std::span<const float> weight, double eps,
                        std::span<const float> grad_y, std::span<float> grad_x);

}  // namespace imago::layers
