#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedQ5_0)
IMAGO_MATMUL_INSTANCE(CodedQ5_1)
IMAGO_MATMUL_INSTANCE(CodedQ5_K)
IMAGO_MATMUL_INSTANCE(CodedQ6_K)
}  // namespace imago::kernels::cuda
