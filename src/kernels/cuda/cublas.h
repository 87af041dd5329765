#pragma once

// Dense products by cuBLASLt. The library is loaded at the first use, not linked: it is as large as a small model, and
// a program built with CUDA must start on machines that only have a driver.

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda/stream.h"

namespace imago::kernels::cuda {

using imago::cuda::Stream;

/// Why cuBLASLt cannot be used, and what to install; empty if it can.
const std::string& cublas_problem();

/// C = alpha · op(A) · op(B) + beta · C for float32 matrices in device memory, row-major, op(A) is [m][k], op(B)
/// [k][n]. Strides are between rows as stored, 0: no gap. Sums are float32 and so are products: no TF32.
struct Gemm {
  std::size_t m = 0, n = 0, k = 0;
  const float* a = nullptr;  ///< [m][k], or [k][m] if transposed
  const float* b = nullptr;  ///< [k][n], or [n][k] if transposed
  float* c = nullptr;        ///< [m][n]
  bool transpose_a = false, transpose_b = false;
  std::size_t a_stride = 0, b_stride = 0, c_stride = 0;
  float alpha = 1, beta = 0;
  std::size_t batch = 1;  ///< products of the same shape, these many values apart; 0 shares an operand
  std::size_t a_batch_stride = 0, b_batch_stride = 0, c_batch_stride = 0;
};

/// Queues the product; does nothing if m, n or batch is 0. REQUIRES: k is not 0. Throws DeviceError with cublas_problem
/// or an error of the library. Can be captured in a graph if the same product ran on this stream before.
void gemm(const Gemm& args, Stream& stream);

/// The type of the operands, and how they are multiplied. Sums are always float32.
enum class GemmType : std::uint8_t { float32, tf32, float16, bfloat16 };

/// y[token][row] = alpha · Σ w[row][col] · x[token][col] + beta · y: weights by activations, both in rows of 4-byte
/// (float32, tf32) or 2-byte values. Rows of w and x should begin on 16 bytes for tensor cores.
struct WeightProduct {
  GemmType type = GemmType::float32;
  std::size_t rows = 0, cols = 0, tokens = 0;
  const void* w = nullptr;
  const void* x = nullptr;
  float* y = nullptr;
  std::size_t w_stride = 0, x_stride = 0, y_stride = 0;
  float alpha = 1, beta = 0;
};

/// Like `gemm`.
void weight_product(const WeightProduct& args, Stream& stream);

}  // namespace imago::kernels::cuda
