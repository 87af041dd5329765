#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedQ5_0)
IMAGO_MATVEC_INSTANCE(CodedQ5_1)
IMAGO_MATVEC_INSTANCE(CodedQ5_K)
IMAGO_MATVEC_INSTANCE(CodedQ6_K)
}  // namespace imago::kernels::cuda
