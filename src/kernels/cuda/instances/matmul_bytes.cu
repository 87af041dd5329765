#include "kernels/cuda/matmul_kernel.cuh"

namespace imago::kernels::cuda {
IMAGO_MATMUL_INSTANCE(CodedDType8)
IMAGO_MATMUL_INSTANCE(CodedQ8_0)
IMAGO_MATMUL_INSTANCE(Plain<Fp8E4M3>)
IMAGO_MATMUL_INSTANCE(Plain<Fp8E5M2>)
}  // namespace imago::kernels::cuda
