#include "kernels/cuda/matvec.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedBinary>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedDType2>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedTq2>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ2_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ3_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
