#include "kernels/cuda/attention_decode_launch.cuh"

template void imago::kernels::cuda::launch_decode<imago::kernels::CacheType::f16>(const DecodeWork&, const DecodePlan&,
                                                                                  Stream&);
