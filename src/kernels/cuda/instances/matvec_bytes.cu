#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedQ8_0>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedDType8>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<CodedQ8_0>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedDType8>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
