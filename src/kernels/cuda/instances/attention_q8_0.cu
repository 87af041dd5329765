#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"

namespace imago::kernels::cuda {
template void launch_decode<CacheType::q8_0>(const DecodeWork&, const DecodePlan&, Stream&);
template void launch_prefill<CacheType::q8_0>(const AttentionWork&, Stream&);
}  // namespace imago::kernels::cuda
