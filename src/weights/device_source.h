#pragma once

// Weights whose only copy is in the memory of an accelerator.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "imago/weights.h"
#include "kernels/cuda/matrix.h"
#include "weights/view_cache.h"

namespace imago {

/// Forms that cover a store: those that layers asked for, where there are enough of them, else one of the whole.
struct DeviceSource {
  struct Piece {  // one of the two pointers is set
    std::size_t first, count;
    std::shared_ptr<const kernels::cuda::GpuMatrix> matrix;
    std::shared_ptr<const DeviceWeights> weights;
  };
  std::shared_ptr<Device> device;
  std::vector<Piece> pieces;  ///< in order; they may overlap

  /// Wq of all weights. Throws DeviceError.
  void download(std::span<float> weights) const;
};

/// Makes what is missing. Throws as device_form.
DeviceSource device_source(const WeightStore& store, const Scheme& scheme, const std::shared_ptr<Device>& device);

}  // namespace imago
