#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {
IMAGO_MATVEC_FEW_INSTANCE(Plain<double>)
IMAGO_MATVEC_FEW_INSTANCE(Plain<float>)
IMAGO_MATVEC_INSTANCE(Plain<Half>)
IMAGO_MATVEC_INSTANCE(Plain<BFloat16>)
IMAGO_MATVEC_INSTANCE(Plain<Fp8E4M3>)
IMAGO_MATVEC_INSTANCE(Plain<Fp8E5M2>)
IMAGO_MATVEC_FEW_INSTANCE(Plain<std::int64_t>)
IMAGO_MATVEC_FEW_INSTANCE(Plain<std::int32_t>)
IMAGO_MATVEC_INSTANCE(Plain<std::int16_t>)
IMAGO_MATVEC_FEW_INSTANCE(Plain<std::uint64_t>)
IMAGO_MATVEC_FEW_INSTANCE(Plain<std::uint32_t>)
IMAGO_MATVEC_INSTANCE(Plain<std::uint16_t>)
}  // namespace imago::kernels::cuda
