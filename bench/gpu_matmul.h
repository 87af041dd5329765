#pragma once

#include <memory>

#include "imago/device.h"

namespace imago::bench {

/// Prints how fast packed weights meet many tokens, beside cuBLAS on bfloat16 in the same run. `paths`: every way, not
/// only the one that is chosen.
void gpu_matmul_table(const std::shared_ptr<Device>& device, bool paths);

}  // namespace imago::bench
