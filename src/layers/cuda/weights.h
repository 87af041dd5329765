#pragma once

// Weights of a store as layers on a GPU read them. They belong to the store, are made at the first use and dropped when
// the master changes; `run` holds them until its stream was waited for.

#include <cstddef>

#include "layers/cuda/run.h"
#include "weights/views.h"

namespace imago::layers::cuda {

/// The slice as its scheme packs it; decoded to float32 where rows do not line up with blocks or scales.
const kernels::cuda::GpuMatrix& device_matrix(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice,
                                              DeviceRun& run);
/// Wq of `count` weights from `first` on, float32.
const float* device_weights(const WeightStore& store, const Scheme& scheme, std::size_t first, std::size_t count,
                            DeviceRun& run);

}  // namespace imago::layers::cuda
