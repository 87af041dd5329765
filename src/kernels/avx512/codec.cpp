// Conversions between float32 and packed weights: dtypes 16 values and block formats 16 blocks at a time.

#include "kernels/avx512/lanes.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx512 {
#include "kernels/generic/codec.inl.h"
}  // namespace imago::kernels::avx512
