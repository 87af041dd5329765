#pragma once

// The weights of a WeightStore as layers compute with them. A view is made by its first reader, kept beside the
// versions of the store and dropped with them when the master changes. Safe from many threads, as `morph` is.

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "imago/weights.h"
#include "kernels/matrix.h"

namespace imago {

namespace kernels::cuda {
class GpuMatrix;
}

/// A matrix inside a store, `first` weights after its beginning.
struct MatrixSlice {
  std::size_t first = 0, rows = 0, cols = 0;
};

/// The slice packed in `scheme`, in the panel layout of the best kernel. Where blocks or groups of the scheme do not
/// line up with the rows of the slice, no kernel can read the codes: the matrix then holds decoded float32. That and
/// types that `fast` arithmetic is not for have exact products. Throws ShapeError if the slice leaves the store or is
/// empty.
std::shared_ptr<const kernels::RunMatrix> host_matrix(const WeightStore& store, const Scheme& scheme,
                                                      const MatrixSlice& slice,
                                                      kernels::Arithmetic arithmetic = kernels::Arithmetic::exact);

/// Wq, decoded once and kept: the whole array, for training. The master itself for float32. Valid until the master
/// changes.
std::span<const float> decoded_weights(const WeightStore& store, const Scheme& scheme);

/// Wq of `count` weights from `first` on, decoded once and kept: biases, norms. Valid until the master changes.
std::span<const float> decoded_slice(const WeightStore& store, const Scheme& scheme, std::size_t first,
                                     std::size_t count);

/// Wq of the weights from `first` on, as many as `out` holds, decoded anew at each call: rows of large tables.
void decode_slice(const WeightStore& store, const Scheme& scheme, std::size_t first, std::span<float> out);

/// What the layer of a weight array reads when it runs: matrices by products, ranges of weights decoded.
struct LayerViews {
  struct Range {
    std::size_t first = 0, count = 0;
  };
  std::vector<MatrixSlice> matrices;
  std::vector<Range> decoded;
};
LayerViews layer_views(const WeightShape& shape);

// The same in the memory of an accelerator. Throw UsageError for the host, DeviceError if they do not fit.

/// The slice packed in `scheme`, in the device layout; decoded where host_matrix is.
std::shared_ptr<const kernels::cuda::GpuMatrix> device_matrix(const WeightStore& store, const Scheme& scheme,
                                                              const MatrixSlice& slice,
                                                              const std::shared_ptr<Device>& device);

/// Wq of `count` weights from `first` on, float32, decoded once and kept.
std::shared_ptr<const Buffer> device_weights(const WeightStore& store, const Scheme& scheme, std::size_t first,
                                             std::size_t count, const std::shared_ptr<Device>& device);

}  // namespace imago
