#include "layers/cuda/gemm.h"

#include "kernels/cuda/cublas.h"

namespace imago::layers::cuda {

void gemm(const GemmArgs& args, Stream& stream) {
  static const bool has_library = kernels::cuda::cublas_problem().empty();
  if (!has_library) return plain_gemm(args, stream);
  kernels::cuda::gemm({.m = args.m,
                       .n = args.n,
                       .k = args.k,
                       .a = args.a,
                       .b = args.b,
                       .c = args.c,
                       .transpose_a = args.a_transposed,
                       .transpose_b = args.b_transposed,
                       .beta = args.add ? 1.0f : 0.0f,
                       .batch = args.batch,
                       .a_batch_stride = args.a_step,
                       .b_batch_stride = args.b_step,
                       .c_batch_stride = args.c_step},
                      stream);
}

}  // namespace imago::layers::cuda
