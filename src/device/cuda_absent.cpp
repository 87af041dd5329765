// In place of device/cuda/ in builds without it.

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

double copy_bandwidth(Device& device) { throw UnsupportedError(device.name() + " is no device of this build"); }

}  // namespace cuda
}  // namespace imago
