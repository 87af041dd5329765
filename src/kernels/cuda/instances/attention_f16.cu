#include "kernels/cuda/attention_decode.cuh"
#include "kernels/cuda/attention_prefill.cuh"
#include "kernels/cuda/attention_wide.cuh"

namespace imago::kernels::cuda {
template void launch_decode<CacheType::f16, false>(const DecodeWork&, const DecodePlan&, Stream&);
template void launch_decode<CacheType::f16, true>(const DecodeWork&, const DecodePlan&, Stream&);
template void launch_prefill<CacheType::f16, false>(const AttentionWork&, Stream&);
template void launch_prefill<CacheType::f16, true>(const AttentionWork&, Stream&);
template void launch_wide<CacheType::f16, false>(const WideWork&, const WidePlan&, Stream&);
template void launch_wide<CacheType::f16, true>(const WideWork&, const WidePlan&, Stream&);
}  // namespace imago::kernels::cuda
