#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_INSTANCE(CodedQ8_0)
IMAGO_MATVEC_INSTANCE(CodedDType8)
}  // namespace imago::kernels::cuda
