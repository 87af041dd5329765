#pragma once

#include <memory>

#include "imago/device.h"

namespace imago::bench {

/// Prints how fast a synthetic llama of 8 billion weights in q4_k generates and reads a prompt on `device`, beside what
/// its bytes at the memory's bandwidth and its operations at cuBLAS's rate would allow. No file: its weights are made
/// here.
void gpu_model_table(const std::shared_ptr<Device>& device);

}  // namespace imago::bench
