// Conversions between float32 and packed weights: dtypes 8 values and block formats 8 blocks at a time.

#include "kernels/avx2/lanes.h"
#include "kernels/folders.h"
#include "quant/block_data.h"

namespace imago::kernels::avx2 {
#include "kernels/generic/codec.inl.h"
}  // namespace imago::kernels::avx2
