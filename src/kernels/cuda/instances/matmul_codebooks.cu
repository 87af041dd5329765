#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedIq1S)
IMAGO_MATMUL_INSTANCE(CodedIq1M)
IMAGO_MATMUL_INSTANCE(CodedIq2Xxs)
IMAGO_MATMUL_INSTANCE(CodedIq2S)
IMAGO_MATMUL_INSTANCE(CodedQ2_0)
}  // namespace imago::kernels::cuda
