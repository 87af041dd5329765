#include "layers/cuda/weights.h"

namespace imago::layers::cuda {

const kernels::cuda::GpuMatrix& device_matrix(const WeightStore& store, const Scheme& scheme, const MatrixSlice& slice,
                                              DeviceRun& run) {
  auto matrix = imago::device_matrix(store, scheme, slice, run.device);
  const kernels::cuda::GpuMatrix& form = *matrix;
  run.held.push_back(std::move(matrix));
  return form;
}

const float* device_weights(const WeightStore& store, const Scheme& scheme, std::size_t first, std::size_t count,
                            DeviceRun& run) {
  auto weights = imago::device_weights(store, scheme, first, count, run.device);
  const float* const values = reinterpret_cast<const float*>(weights->address());
  run.held.push_back(std::move(weights));
  return values;
}

}  // namespace imago::layers::cuda
