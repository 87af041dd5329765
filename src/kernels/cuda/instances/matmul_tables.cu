#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedFp4)
IMAGO_MATMUL_INSTANCE(CodedIq4Nl)
IMAGO_MATMUL_INSTANCE(CodedIq4Xs)
IMAGO_MATMUL_INSTANCE(CodedMxfp4)
IMAGO_MATMUL_INSTANCE(CodedNvfp4)
IMAGO_MATMUL_INSTANCE(CodedIq3Xxs)
IMAGO_MATMUL_INSTANCE(CodedIq3S)
}  // namespace imago::kernels::cuda
