#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<Plain<std::int64_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<std::int32_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<std::int16_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<std::uint64_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<std::uint32_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<std::uint16_t>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<Plain<std::int16_t>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<Plain<std::uint16_t>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
