// Conversions between float32 and packed weights: dtypes 4 values and block formats 4 blocks at a time.

#include "kernels/folders.h"
#include "kernels/neon/lanes.h"
#include "quant/block_data.h"

namespace imago::kernels::neon {
#include "kernels/generic/codec.inl.h"
}  // namespace imago::kernels::neon
