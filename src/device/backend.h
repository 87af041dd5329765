#pragma once

// What stands behind open_device for "cuda": the CUDA runtime, or a stub in builds without it.

#include <cstddef>
#include <memory>

#include "imago/device.h"

namespace imago {

/// Throws ShapeError unless `bytes` bytes at `offset` lie within `buffer`.
void check_range(const Buffer& buffer, std::size_t offset, std::size_t bytes);

namespace cuda {

/// The device with this number, the same object each time. Throws DeviceError as open_device does.
std::shared_ptr<Device> open(int number);
/// measure_copy_bandwidth for a CUDA device.
double copy_bandwidth(Device& device);

}  // namespace cuda
}  // namespace imago
