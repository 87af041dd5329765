#pragma once

// Float32 products of training, by oneDNN where the build has it. Work is split over our pool and each part computes on
// one thread, so a result may depend on the number of threads, never on their timing. All matrices are row-major. The
// products over doubles, for layers of float64, are plain C++.

#include <cstddef>
#include <span>

namespace imago::math {

struct Backend;
/// oneDNN if the build has it, unless IMAGO_KERNELS=ref allows plain C++ only.
const Backend& best_backend();

enum class Transpose : bool { no, yes };

/// Whether the result replaces C or is added to it.
enum class Write : bool { replace, add };

/// C[m][n] (+)= op(A) · op(B); op(A) is m × k, op(B) is k × n.
struct GemmShape {
  std::size_t m, n, k;
  Transpose a = Transpose::no, b = Transpose::no;
};
/// Throws ShapeError if the spans do not hold such matrices.
void gemm(const GemmShape& shape, std::span<const float> a, std::span<const float> b, std::span<float> c,
          Write write = Write::replace, const Backend& backend = best_backend());
/// C = op(A) · op(B).
void gemm(const GemmShape& shape, std::span<const double> a, std::span<const double> b, std::span<double> c);

/// A convolution over 1 to 3 axes; axes that are not there have extent 1 and kernel 1.
struct ConvolutionExtents {
  std::size_t batch, channels, filters;
  std::size_t in[3], out[3];  ///< depth, height, width
  std::size_t kernel[3], stride[3];
  std::size_t padding[3];  ///< before the input; that after it follows from the output size and may be negative
};

// y[b][f][o] = Σ x[b][c][o·s + k - p] · w[f][c][k]; taps outside are 0. Layouts [B][C][…], [F][C][…], [B][F][…]. All
// throw ShapeError if the spans do not fit the extents.
void convolve(const ConvolutionExtents& e, std::span<const float> x, std::span<const float> w, std::span<float> y,
              const Backend& backend = best_backend());
void convolve(const ConvolutionExtents& e, std::span<const double> x, std::span<const double> w, std::span<double> y);
/// grad_x (all of it is written).
void convolve_backward_data(const ConvolutionExtents& e, std::span<const float> grad_y, std::span<const float> w,
                            std::span<float> grad_x, const Backend& backend = best_backend());
void convolve_backward_data(const ConvolutionExtents& e, std::span<const double> grad_y, std::span<const double> w,
                            std::span<double> grad_x);
/// grad_w += …
void convolve_backward_weights(const ConvolutionExtents& e, std::span<const float> x, std::span<const float> grad_y,
                               std::span<float> grad_w, const Backend& backend = best_backend());

}  // namespace imago::math
