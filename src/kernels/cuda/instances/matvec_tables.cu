#include "kernels/cuda/matvec_few.cuh"
#include "kernels/cuda/matvec_stream.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedFp4>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedIq4Nl>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedIq4Xs>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedMxfp4>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedNvfp4>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

template bool stream_matvec<CodedFp4>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedIq4Nl>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedIq4Xs>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedMxfp4>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);
template bool stream_matvec<CodedNvfp4>(const MatVecArgs&, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
