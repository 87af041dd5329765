#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedEntity)
IMAGO_MATVEC_INSTANCE(CodedQ4_0)
IMAGO_MATVEC_INSTANCE(CodedQ4_1)
IMAGO_MATVEC_INSTANCE(CodedQ4_K)
IMAGO_MATVEC_INSTANCE(CodedDType4)
}  // namespace imago::kernels::cuda
