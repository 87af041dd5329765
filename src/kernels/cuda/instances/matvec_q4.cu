#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedEntity>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ4_0>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ4_1>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ4_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedDType4>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<CodedEntity>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ4_0>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ4_1>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ4_K>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedDType4>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
