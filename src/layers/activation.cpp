#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/parallel.h"
#include "imago/error.h"
#include "kernels/ops.h"
#include "layers/linear.h"

namespace imago::layers {

namespace {

constexpr std::size_t kGrain = 16384;  // some 10 µs, worth a thread
constexpr std::size_t kChunk = 512;    // values in work at a time, on the stack: they stay in the first-level cache

void check_sizes(std::size_t a, std::size_t b) {
  if (a != b) throw ShapeError(fmt::format("an activation of {} values into {}", a, b));
}

/// grad_z = grad_y · derivative(z).
template <class Derivative>
void multiply(std::span<const float> z, std::span<const float> grad_y, std::span<float> grad_z, Derivative derivative) {
  parallel_for(z.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) grad_z[i] = grad_y[i] * derivative(z[i]);
  });
}

/// grad_z = grad_y · derivative(z, f(argument(z))), with f by the kernels.
template <class Argument, class Derivative>
void multiply_through(kernels::Activation f, std::span<const float> z, std::span<const float> grad_y,
                      std::span<float> grad_z, Argument argument, Derivative derivative) {
  parallel_for(z.size(), kGrain, [&](std::size_t begin, std::size_t end) {
    std::array<float, kChunk> values;
    for (std::size_t at = begin; at < end; at += kChunk) {
      const std::size_t count = std::min(kChunk, end - at);
      for (std::size_t i = 0; i < count; ++i) values[i] = argument(z[at + i]);
      const std::span<float> chunk(values.data(), count);
      kernels::activate(f, chunk, chunk);
      for (std::size_t i = 0; i < count; ++i) grad_z[at + i] = grad_y[at + i] * derivative(z[at + i], values[i]);
    }
  });
}

constexpr auto kIdentity = [](float z) { return z; };

/// Beyond ±limit the factor in front is 0 or the term constant in float32; without the bound ∞ · 0 would make a NaN.
float bounded(float z, float limit) { return z > limit ? limit : z < -limit ? -limit : z; }

void gelu_backward(std::span<const float> z, std::span<const float> grad_y, std::span<float> grad_z) {
  constexpr float k = 0.7978845608f;  // sqrt(2 / pi)
  constexpr float a = 0.044715f;
  constexpr float kLimit = 16;  // tanh u is ±1 from |z| = 6 on
  multiply_through(
      kernels::Activation::tanh, z, grad_y, grad_z,
      [](float v) {
        const float x = bounded(v, kLimit);
        return k * (x + a * x * x * x);
      },
      [](float v, float t) {
        const float x = bounded(v, kLimit);
        return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * k * (1 + 3 * a * x * x);
      });
}

}  // namespace

kernels::Activation kernel_function(Activation activation) noexcept {
  switch (activation) {
    case Activation::linear: return kernels::Activation::linear;
    case Activation::relu: return kernels::Activation::relu;
    case Activation::silu: return kernels::Activation::silu;
    case Activation::gelu: return kernels::Activation::gelu;
    case Activation::tanh: return kernels::Activation::tanh;
    case Activation::sigmoid: return kernels::Activation::sigmoid;
    case Activation::leaky_relu: return kernels::Activation::leaky_relu;
    case Activation::relu2: return kernels::Activation::relu2;
  }
  return kernels::Activation::linear;  // unknown ids behave as Linear (spec/layers.md §2.1)
}

void apply_activation(Activation activation, std::span<const float> z, std::span<float> y) {
  check_sizes(z.size(), y.size());
  if (kernel_function(activation) == kernels::Activation::linear && z.data() == y.data()) return;
  kernels::activate(kernel_function(activation), z, y);
}

void activation_backward(Activation activation, std::span<const float> z, std::span<const float> grad_y,
                         std::span<float> grad_z) {
  check_sizes(z.size(), grad_y.size());
  check_sizes(z.size(), grad_z.size());
  constexpr float kLimit = 120;  // exp(-120) is 0 in float32
  switch (kernel_function(activation)) {
    case kernels::Activation::linear:
      if (grad_z.data() != grad_y.data()) std::ranges::copy(grad_y, grad_z.begin());
      return;
    case kernels::Activation::relu: return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.0f : 1.0f; });
    case kernels::Activation::leaky_relu:
      return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.01f : 1.0f; });
    case kernels::Activation::relu2: return multiply(z, grad_y, grad_z, [](float v) { return v <= 0 ? 0.0f : 2 * v; });
    case kernels::Activation::tanh:
      return multiply_through(kernels::Activation::tanh, z, grad_y, grad_z, kIdentity,
                              [](float, float t) { return 1 - t * t; });
    case kernels::Activation::sigmoid:
      return multiply_through(kernels::Activation::sigmoid, z, grad_y, grad_z, kIdentity,
                              [](float, float s) { return s * (1 - s); });
    case kernels::Activation::silu:
      return multiply_through(kernels::Activation::sigmoid, z, grad_y, grad_z, kIdentity,
                              [](float v, float s) { return s * (1 + bounded(v, kLimit) * (1 - s)); });
    case kernels::Activation::gelu: return gelu_backward(z, grad_y, grad_z);
  }
}

}  // namespace imago::layers
