#pragma once

#include <cstddef>
#include <span>

#include "imago/train.h"
#include "layers/cuda/run.h"

namespace imago::cuda {

/// Losses of tensors in device memory, with the memory they need on the way.
class DeviceLoss {
 public:
  explicit DeviceLoss(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  /// Queues the loss of `output` into *out (device memory) and its gradient, unless null. `target` is the same as on
  /// the host, whose classes are counted and checked there. `loss` must stay until the stream was waited for. Throws as
  /// evaluate_loss.
  void queue(const Loss& loss, const layers::cuda::DeviceTensor& output, const layers::cuda::DeviceTensor& target,
             const Tensor<float>& host_target, layers::cuda::DeviceTensor* gradient, double* out, Stream& stream);

 private:
  std::shared_ptr<Device> device_;
  Array<double> partials_;
  Array<float> mask_;
  Array<int> starts_;
  std::vector<int> host_starts_;
};

}  // namespace imago::cuda
