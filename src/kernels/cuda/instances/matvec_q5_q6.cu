#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedQ5_0>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ5_1>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ5_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ6_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<CodedQ5_0>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ5_1>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ5_K>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ6_K>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
