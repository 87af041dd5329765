#pragma once

// Float32 products of training and of layers without packed kernels. Row-major.

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// C[m][n] = op(A) · op(B), or += with `add`, for `batch` products whose operands lie the given steps apart (0: the
/// same one for all). op(A) is m × k, op(B) is k × n. Rows of the operands are contiguous.
struct GemmArgs {
  const float* a;
  const float* b;
  float* c;
  std::size_t m, n, k;
  bool a_transposed = false, b_transposed = false;
  bool add = false;
  std::size_t batch = 1;
  std::size_t a_step = 0, b_step = 0, c_step = 0;
};

/// By cuBLAS in float32 where it is there, else by a kernel of our own. The same bits at every call.
void gemm(const GemmArgs& args, Stream& stream);

/// The kernel of our own.
void plain_gemm(const GemmArgs& args, Stream& stream);

}  // namespace imago::layers::cuda
