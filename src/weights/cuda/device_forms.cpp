#include "weights/device_forms.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "device/cuda/stream.h"

namespace imago {

std::shared_ptr<const kernels::cuda::GpuMatrix> make_device_form(const std::shared_ptr<Device>& device,
                                                                 const kernels::PackedMatrix& source) {
  return std::make_shared<const kernels::cuda::GpuMatrix>(device, source);
}

void dequantize_on_device(const kernels::cuda::GpuMatrix& matrix, Buffer& to) {
  cuda::Stream stream(to.device());
  kernels::cuda::dequantize(matrix, reinterpret_cast<float*>(to.address()), stream);
  stream.wait();
}

void download_decoded(const kernels::cuda::GpuMatrix& matrix, const std::shared_ptr<Device>& device,
                      std::span<float> out) {
  // All of it decoded may be more than is free, now that the device is where the weights are.
  constexpr std::size_t kPartBytes = std::size_t{32} << 20;
  const std::size_t rows = matrix.rows(), cols = matrix.cols();
  const std::size_t part_rows = std::clamp<std::size_t>(kPartBytes / sizeof(float) / cols, 1, rows);
  cuda::Stream stream(device);
  cuda::Array<std::int32_t> numbers(*device, part_rows);
  cuda::Array<float> part(*device, part_rows * cols);
  std::vector<std::int32_t> wanted(part_rows);
  for (std::size_t first = 0; first < rows; first += part_rows) {
    const std::size_t count = std::min(part_rows, rows - first);
    std::iota(wanted.begin(), wanted.end(), static_cast<std::int32_t>(first));
    device->upload(std::as_bytes(std::span(wanted).first(count)), numbers.buffer(), 0);
    kernels::cuda::dequantize_rows(matrix, numbers.data(), count, 1.0f, part.data(), stream);
    stream.wait();
    device->download(part.buffer(), 0, std::as_writable_bytes(out.subspan(first * cols, count * cols)));
  }
}

}  // namespace imago
