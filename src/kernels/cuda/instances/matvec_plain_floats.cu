#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<Plain<double>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<float>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<Half>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<BFloat16>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<Fp8E4M3>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<Plain<Fp8E5M2>>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<Plain<Half>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<Plain<BFloat16>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<Plain<Fp8E4M3>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<Plain<Fp8E5M2>>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
