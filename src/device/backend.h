#pragma once

// Implementation of open_device for "cuda": the CUDA runtime, or a stub in builds without it.

#include <cstddef>
#include <memory>

#include "imago/device.h"

namespace imago {

/// Throws ShapeError unless `bytes` bytes at `offset` lie within `buffer`.
void check_range(const Buffer& buffer, std::size_t offset, std::size_t bytes);

namespace cuda {

/// The device with this number, always the same object. Throws DeviceError like open_device.
std::shared_ptr<Device> open(int number);
/// measure_copy_bandwidth for a CUDA device.
double copy_bandwidth(Device& device);

}  // namespace cuda
}  // namespace imago
