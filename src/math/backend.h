#pragma once

// Who computes a product. products.cpp checks sizes and splits the work; a backend computes one range of it, on the
// thread that calls it, and fails only if there is no memory.

#include <cstddef>
#include <span>
#include <string_view>

#include "math/products.h"

namespace imago::math {

/// C[m][n] (+)= op(A) · op(B). `*_stride`: values from one row in memory to the next.
struct GemmArgs {
  std::size_t m, n, k;  // none is 0
  Transpose transpose_a, transpose_b;
  const float* a;
  std::size_t a_stride;
  const float* b;
  std::size_t b_stride;
  float* c;
  std::size_t c_stride;
  Write write;
};

/// Some samples, filters and channels of a convolution; `extents` counts those alone. The pointers are at the first of
/// them; one array of the three is written: y, or the gradient of x or w.
template <class X, class W, class Y>
struct ConvolutionArgs {
  ConvolutionExtents extents;
  X* x;
  std::size_t x_sample;  ///< values from one sample of x to the next
  W* w;
  std::size_t w_filter;  ///< values from one filter of w to the next
  Y* y;
  std::size_t y_sample;
};
using ForwardArgs = ConvolutionArgs<const float, const float, float>;
using BackwardDataArgs = ConvolutionArgs<float, const float, const float>;
using BackwardWeightsArgs = ConvolutionArgs<const float, float, const float>;

struct Backend {
  std::string_view name;
  void (*gemm)(const GemmArgs& args);
  void (*convolve)(const ForwardArgs& args);
  void (*convolve_backward_data)(const BackwardDataArgs& args);
  void (*convolve_backward_weights)(const BackwardWeightsArgs& args);
};

/// Plain C++, in every build.
const Backend& plain_backend() noexcept;
/// oneDNN, or null in a build without it.
const Backend* onednn_backend() noexcept;
/// oneDNN if the build has it, unless IMAGO_KERNELS=ref allows plain C++ only.
const Backend& best_backend();

/// Convolutions by a given product.
using GemmFunction = void (*)(const GemmArgs& args);
void columns_convolve(const ForwardArgs& args, GemmFunction gemm);
void columns_backward_data(const BackwardDataArgs& args, GemmFunction gemm);
void columns_backward_weights(const BackwardWeightsArgs& args, GemmFunction gemm);

// As in products.h, by the given backend.

void gemm(const Backend& backend, const GemmShape& shape, std::span<const float> a, std::span<const float> b,
          std::span<float> c, Write write = Write::replace);
void convolve(const Backend& backend, const ConvolutionExtents& e, std::span<const float> x, std::span<const float> w,
              std::span<float> y);
void convolve_backward_data(const Backend& backend, const ConvolutionExtents& e, std::span<const float> grad_y,
                            std::span<const float> w, std::span<float> grad_x);
void convolve_backward_weights(const Backend& backend, const ConvolutionExtents& e, std::span<const float> x,
                               std::span<const float> grad_y, std::span<float> grad_w);

/// Values of one channel of x, one filter of y, one channel of a filter of w.
inline std::size_t in_values(const ConvolutionExtents& e) { return e.in[0] * e.in[1] * e.in[2]; }
inline std::size_t out_values(const ConvolutionExtents& e) { return e.out[0] * e.out[1] * e.out[2]; }
inline std::size_t kernel_values(const ConvolutionExtents& e) { return e.kernel[0] * e.kernel[1] * e.kernel[2]; }

}  // namespace imago::math
