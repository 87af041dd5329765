#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedDType4)
IMAGO_MATMUL_INSTANCE(CodedEntity)
IMAGO_MATMUL_INSTANCE(CodedQ4_0)
IMAGO_MATMUL_INSTANCE(CodedQ4_1)
IMAGO_MATMUL_INSTANCE(CodedQ4_K)
}  // namespace imago::kernels::cuda
