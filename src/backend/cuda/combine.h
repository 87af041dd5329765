#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/stream.h"

namespace imago::backend::cuda {

/// What the experts of each token have made, weighted: out[t] = Σ weights[t][i] · results[slot_of[t][i]] over the
/// `used` experts of a token. Rows of `width`; all in device memory.
struct CombineArgs {
  const float* results;
  const std::int32_t* slot_of;
  const float* weights;
  float* out;
  std::size_t tokens, used, width;
};
void combine_experts(const CombineArgs& args, imago::cuda::Stream& stream);

}  // namespace imago::backend::cuda
