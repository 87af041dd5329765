// Every function of the CUDA backend that the rest of the library calls, for builds without that backend: no
// accelerator is listed, and whatever would need one throws.

#include "backend/runner.h"
#include "device/backend.h"
#include "imago/device.h"
#include "imago/error.h"
#include "kernels/cuda/matrix.h"
#include "network/network_state.h"
#include "train/stepper.h"

namespace imago {

std::vector<DeviceInfo> accelerators() { return {}; }

std::string accelerator_problem() {
  return "this build has no CUDA backend: it was made without nvcc, or with IMAGO_CUDA=OFF";
}

namespace cuda {

std::shared_ptr<Device> open(int) { throw DeviceError(accelerator_problem()); }

double copy_bandwidth(Device& device) { throw UnsupportedError(device.name() + " is not a device of this build"); }

}  // namespace cuda

namespace kernels::cuda {

GpuMatrix::GpuMatrix(std::shared_ptr<Device>, const PackedMatrix& source) : format_(source.format) {
  throw DeviceError(accelerator_problem());
}
void GpuMatrix::decode_into(Buffer&) const { throw DeviceError(accelerator_problem()); }
void GpuMatrix::download(std::span<float>) const { throw DeviceError(accelerator_problem()); }

}  // namespace kernels::cuda

std::unique_ptr<network::DeviceRunner> network::make_device_runner(std::shared_ptr<Device> device) {
  throw UnsupportedError("networks do not run on " + device->name() + ": this build has no CUDA backend");
}

std::unique_ptr<Stepper> make_device_stepper(Network&, const Dataset&, const OptimizerOptions&,
                                             std::shared_ptr<Device> device) {
  throw UnsupportedError("networks are not trained on " + device->name() + ": this build has no CUDA backend");
}

std::unique_ptr<backend::Runner> backend::make_cuda_runner(std::shared_ptr<Device>, std::shared_ptr<const Program>,
                                                           const RunnerOptions&) {
  throw UnsupportedError("this build has no CUDA backend; language models run on the host");
}

}  // namespace imago
