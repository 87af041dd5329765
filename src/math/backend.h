#pragma once

// Who computes a product. products.cpp checks sizes and splits the work; a backend computes one range of it, on the
// thread that calls it, and fails only if there is no memory.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "math/products.h"

namespace imago::math {

/// A matrix or its transpose. `stride`: values from one row in memory to the next.
struct GemmOperand {
  const float* values;
  std::size_t stride;
  Transpose transpose = Transpose::no;
};

/// C[m][n] (+)= A · B.
struct GemmArgs {
  std::size_t m, n, k;  // none is 0
  GemmOperand a, b;
  float* c;
  std::size_t c_stride;
  Write write = Write::replace;
};

/// Which of x, w and y a convolution computes from the other two: y, or the gradient of x or w.
enum class ConvolutionKind : std::uint8_t { forward, backward_data, backward_weights };

/// Some samples, filters and channels of a convolution; `extents` counts those alone. The pointers are at the first of
/// them. Only the array that the kind computes is written.
struct ConvolutionArgs {
  ConvolutionKind kind;
  ConvolutionExtents extents;
  float* x;
  std::size_t x_sample;  ///< values from one sample of x to the next
  float* w;
  std::size_t w_filter;  ///< values from one filter of w to the next
  float* y;
  std::size_t y_sample;
};

struct Backend {
  std::string_view name;
  void (*gemm)(const GemmArgs& args);
  void (*convolve)(const ConvolutionArgs& args);
};

/// Plain C++, in every build.
const Backend& plain_backend() noexcept;
/// oneDNN, or null in a build without it.
const Backend* onednn_backend() noexcept;

/// Zeroes x, all samples of it.
void clear_x(const ConvolutionArgs& args);
/// A convolution by a given product.
void convolve_by_columns(const ConvolutionArgs& args, void (*gemm)(const GemmArgs& args));

/// Values of one channel of x, one filter of y, one channel of a filter of w.
inline std::size_t in_values(const ConvolutionExtents& e) { return e.in[0] * e.in[1] * e.in[2]; }
inline std::size_t out_values(const ConvolutionExtents& e) { return e.out[0] * e.out[1] * e.out[2]; }
inline std::size_t kernel_values(const ConvolutionExtents& e) { return e.kernel[0] * e.kernel[1] * e.kernel[2]; }

}  // namespace imago::math
