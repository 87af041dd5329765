#pragma once

#include <memory>

#include "device/cuda/stream.h"

namespace imago::bench {

/// Bytes per second that a kernel gets from the memory of `device` when it does nothing else.
double read_bandwidth(const std::shared_ptr<Device>& device);

}  // namespace imago::bench
