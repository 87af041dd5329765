#include "kernels/cuda/matvec.cuh"

namespace imago::kernels::cuda {

template void launch_matvec<CodedQ5_0>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ5_1>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ5_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);
template void launch_matvec<CodedQ6_K>(MatVecArgs, bool, const LaunchFacts&, CUstream_st*);

}  // namespace imago::kernels::cuda
