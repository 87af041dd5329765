#include "kernels/cuda/attention_prefill_launch.cuh"

template void imago::kernels::cuda::launch_prefill<imago::kernels::CacheType::f16>(const AttentionWork&, Stream&);
