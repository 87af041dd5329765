#include "device/cuda/check.h"

#include <fmt/format.h>

#include "imago/error.h"

namespace imago::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // else the next launch would report it again
  std::string text = fmt::format("{}: {}", what, cudaGetErrorString(status));
  std::size_t free = 0, total = 0;
  if (status == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess) {
    text += fmt::format(" ({:.2f} of {:.2f} GiB are free on the device)", static_cast<double>(free) / (1 << 30),
                        static_cast<double>(total) / (1 << 30));
  }
  throw DeviceError(text);
}

}  // namespace imago::cuda
