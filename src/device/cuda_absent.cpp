// Replaces device/cuda/ in builds without CUDA.

#include "device/backend.h"
#include "imago/device.h"
#include "imago/error.h"

namespace imago {

std::vector<DeviceInfo> accelerators() { return {}; }

std::string accelerator_problem() {
  return "this build has no CUDA backend: it was made without nvcc, or with IMAGO_CUDA=OFF";
}

namespace cuda {

std::shared_ptr<Device> open(int) { throw DeviceError(accelerator_problem()); }

double copy_bandwidth(Device& device) { throw UnsupportedError(device.name() + " is not a device of this build"); }

}  // namespace cuda
}  // namespace imago
