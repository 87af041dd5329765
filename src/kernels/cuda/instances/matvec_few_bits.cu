#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedBinary)
IMAGO_MATVEC_INSTANCE(CodedDType2)
IMAGO_MATVEC_INSTANCE(CodedTq2)
IMAGO_MATVEC_INSTANCE(CodedQ2_K)
IMAGO_MATVEC_INSTANCE(CodedQ3_K)
}  // namespace imago::kernels::cuda
