#pragma once

#include <memory>

#include "imago/device.h"

namespace imago::bench {

/// Prints what norms, activations, sampling and attention of an 8 B llama, and scans of others, take on a GPU.
void gpu_ops_table(const std::shared_ptr<Device>& device);

}  // namespace imago::bench
