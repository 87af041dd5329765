#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedFp4)
IMAGO_MATVEC_INSTANCE(CodedIq4Nl)
IMAGO_MATVEC_INSTANCE(CodedIq4Xs)
IMAGO_MATVEC_INSTANCE(CodedMxfp4)
IMAGO_MATVEC_INSTANCE(CodedNvfp4)
IMAGO_MATVEC_INSTANCE(CodedIq3Xxs)
IMAGO_MATVEC_INSTANCE(CodedIq3S)
}  // namespace imago::kernels::cuda
