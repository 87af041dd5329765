#pragma once

// One step of recurrent layers, and the assignment of KMeans.

#include <cstddef>

#include "device/cuda/stream.h"

namespace imago::layers::cuda {

using imago::cuda::Stream;

/// Step t of sequences [batch][steps][hidden].
struct StepShape {
  std::size_t batch, steps, hidden, t;
};

/// h = tanh(sums[b][t] + product[b]), into `h` [batch][hidden] and post[b][t]; `product` null: none.
void rnn_step(const StepShape& shape, const float* sums, const float* product, float* h, float* post, Stream& stream);

/// Gates i, f, g, o: sums [4][batch][steps][hidden] + products [4][batch][hidden] (null: none). c and h are
/// [batch][hidden], c goes in as that of the step before (not read at t 0).
void lstm_step(const StepShape& shape, const float* sums, const float* products, float* c, float* h, float* post,
               Stream& stream);

/// a[row][j] = softmax_j(-|x[row] - center[j]|² · half_inverse_variance). `distances` has rows · clusters doubles.
struct AssignArgs {
  const float* x;
  const float* centers;
  float* a;
  double* distances;
  std::size_t rows, clusters, width;
  double half_inverse_variance;
};
void assign_clusters(const AssignArgs& args, Stream& stream);

}  // namespace imago::layers::cuda
