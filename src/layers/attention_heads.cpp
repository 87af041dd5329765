#include "layers/attention_heads.h"

#include <algorithm>
#include <cmath>

#include "layers/fixed_norm.h"

namespace imago::layers {

namespace {

/// (a, b) becomes (a · cos - b · sin, a · sin + b · cos); `direction` -1 turns back. The halves do not overlap.
void turn(float* __restrict low, float* __restrict high, const float* __restrict cosines, const float* __restrict sines,
          std::size_t half, float direction) noexcept {
  for (std::size_t j = 0; j < half; ++j) {
    const float a = low[j];
    const float b = high[j];
    const float sine = direction * sines[j];
    low[j] = a * cosines[j] - b * sine;
    high[j] = a * sine + b * cosines[j];
  }
}

void turn_row(const kernels::RopeTable& table, std::size_t position, float direction, float* row) {
  const std::size_t half = table.rotary() / 2;
  const float* const cosines = table.at(position).data();
  turn(row, row + half, cosines, cosines + half, half, direction);
}

}  // namespace

kernels::RopeTable attention_rope(std::size_t head_values, double base, std::size_t positions) {
  kernels::RopeSettings settings{.rotary = head_values / 2 * 2, .base = base};
  if (head_values != settings.rotary) {
    // The frequencies are base^(-2j/d) with the whole d, where the table would take the even part of it.
    const double d = static_cast<double>(head_values);
    const double rotary = static_cast<double>(settings.rotary);
    for (std::size_t j = 0; j < head_values / 2; ++j) {
      settings.frequency_factors.push_back(std::pow(base, 2 * static_cast<double>(j) * (1 / rotary - 1 / d)));
    }
  }
  return kernels::RopeTable(settings, positions);
}

void gather_head(const HeadRows& from, std::size_t steps, std::size_t width, const HeadTransform& transform,
                 float* tile) {
  for (std::size_t t = 0; t < steps; ++t) {
    const float* const row = from.first + t * from.stride;
    float* const to = tile + t * width;
    if (transform.norm.empty()) {
      std::copy_n(row, width, to);
    } else {
      norm_row(row, transform.norm, transform.eps, to);
    }
    if (transform.rope != nullptr) turn_row(*transform.rope, t, 1, to);
  }
}

void scatter_head(const float* tile, std::size_t steps, std::size_t width, float* first, std::size_t stride) {
  for (std::size_t t = 0; t < steps; ++t) std::copy_n(tile + t * width, width, first + t * stride);
}

void scatter_gradient(const float* grad_tile, const HeadRows& from, std::size_t steps, std::size_t width,
                      const HeadTransform& transform, float* grad_first) {
  for (std::size_t t = 0; t < steps; ++t) {
    float* const to = grad_first + t * from.stride;
    std::copy_n(grad_tile + t * width, width, to);
    if (transform.rope != nullptr) turn_row(*transform.rope, t, -1, to);
    if (!transform.norm.empty()) {
      norm_row_backward(from.first + t * from.stride, transform.norm, transform.eps, to, to);
    }
  }
}

}  // namespace imago::layers
