#pragma once

// The few calls of the weight store that reach an accelerator; builds without CUDA have stubs of them that throw
// DeviceError.

#include <cstddef>
#include <memory>
#include <span>

#include "imago/device.h"
#include "kernels/cuda/matrix.h"
#include "kernels/matrix.h"

namespace imago {

std::shared_ptr<const kernels::cuda::GpuMatrix> make_device_form(const std::shared_ptr<Device>& device,
                                                                 const kernels::PackedMatrix& source);
/// Wq of the matrix into `to`, which lies on the same device and has room for rows · cols floats.
void dequantize_on_device(const kernels::cuda::GpuMatrix& matrix, Buffer& to);
/// Wq of the matrix into host memory, a part at a time. REQUIRES: out.size() == rows · cols.
void download_decoded(const kernels::cuda::GpuMatrix& matrix, const std::shared_ptr<Device>& device,
                      std::span<float> out);

}  // namespace imago
