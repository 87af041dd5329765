#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedBinary>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedDType2>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedTq2>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ2_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ3_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<CodedBinary>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedDType2>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedTq2>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ2_K>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedQ3_K>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
