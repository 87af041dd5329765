#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedIq1S)
IMAGO_MATVEC_INSTANCE(CodedIq1M)
IMAGO_MATVEC_INSTANCE(CodedIq2Xxs)
IMAGO_MATVEC_INSTANCE(CodedIq2S)
IMAGO_MATVEC_INSTANCE(CodedQ2_0)
}  // namespace imago::kernels::cuda
