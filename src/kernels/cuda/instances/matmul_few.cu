#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedBinary)
IMAGO_MATMUL_INSTANCE(CodedDType2)
IMAGO_MATMUL_INSTANCE(CodedTq2)
IMAGO_MATMUL_INSTANCE(CodedQ2_K)
IMAGO_MATMUL_INSTANCE(CodedQ3_K)
}  // namespace imago::kernels::cuda
