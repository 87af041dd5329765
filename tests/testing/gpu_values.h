#pragma once

// For tests and timings: values to the device and back.

#include <cstddef>
#include <span>
#include <vector>

#include "device/cuda/stream.h"

namespace imago::kernels::cuda {

/// A copy of host values in device memory.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, std::span<const T> values) : array_(device, values.size()) {
    device.upload(std::as_bytes(values), array_.buffer(), 0);
  }
  OnDevice(Device& device, const std::vector<T>& values) : OnDevice(device, std::span<const T>(values)) {}
  T* data() const noexcept { return array_.data(); }
  std::size_t size() const noexcept { return array_.size(); }
  /// After stream.wait().
  std::vector<T> values() const {
    std::vector<T> result(array_.size());
    array_.buffer().device()->download(array_.buffer(), 0, std::as_writable_bytes(std::span(result)));
    return result;
  }

 private:
  mutable imago::cuda::Array<T> array_;
};

}  // namespace imago::kernels::cuda
