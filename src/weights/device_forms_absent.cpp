// In place of cuda/device_forms.cpp in builds without CUDA.

#include "imago/error.h"
#include "weights/device_forms.h"

namespace imago {

std::shared_ptr<const kernels::cuda::GpuMatrix> make_device_form(const std::shared_ptr<Device>&,
                                                                 const kernels::PackedMatrix&) {
  throw DeviceError(accelerator_problem());
}

void dequantize_on_device(const kernels::cuda::GpuMatrix&, Buffer&) { throw DeviceError(accelerator_problem()); }

void download_decoded(const kernels::cuda::GpuMatrix&, const std::shared_ptr<Device>&, std::span<float>) {
  throw DeviceError(accelerator_problem());
}

}  // namespace imago
