#include "layers/cuda/embedding_kernels.h"

#include "layers/cuda/launch.cuh"

namespace imago::layers::cuda {

namespace {

__device__ long long row_of(float id, std::size_t rows) {
  const double value = static_cast<double>(id);
  if (!(value > -1 && value < static_cast<double>(rows))) return -1;
  return static_cast<long long>(value > 0 ? value : 0);
}

}  // namespace

void look_up(const EmbeddingArgs& args, const float* table, float* out, Stream& stream) {
  const EmbeddingArgs a = args;
  for_each(a.count * a.cols, "look_up", stream, [=] __device__(std::size_t i) {
    const long long row = row_of(a.ids[i / a.cols], a.rows);
    out[i] = row < 0 ? 0.0f : table[static_cast<std::size_t>(row) * a.cols + i % a.cols];
  });
}

void look_up_backward(const EmbeddingArgs& args, const float* grad, float* grad_table, Stream& stream) {
  const EmbeddingArgs a = args;
  // The block of an id's first occurrence adds up all of them, in order: no atomic additions, whose order would change
  // the last bits from run to run. Comparing all ids with all costs less than the additions for batches of 10^5 ids.
  for_each_row(a.count, "look_up_backward", stream, [=] __device__(std::size_t place) {
    const long long row = row_of(a.ids[place], a.rows);
    __shared__ int seen;
    __syncthreads();
    if (threadIdx.x == 0) seen = row < 0;
    __syncthreads();
    for (std::size_t i = threadIdx.x; i < place && row >= 0; i += kThreads) {
      if (row_of(a.ids[i], a.rows) == row) seen = 1;
    }
    __syncthreads();
    if (seen != 0) return;
    float* const to = grad_table + static_cast<std::size_t>(row) * a.cols;
    __shared__ bool matches[kThreads];
    for (std::size_t first = place; first < a.count; first += kThreads) {
      __syncthreads();
      const std::size_t mine = first + threadIdx.x;
      const bool match = mine < a.count && row_of(a.ids[mine], a.rows) == row;
      matches[threadIdx.x] = match;
      if (__syncthreads_or(match) == 0) continue;
      for (unsigned i = 0; i < kThreads; ++i) {
        if (!matches[i]) continue;
        for (std::size_t c = threadIdx.x; c < a.cols; c += kThreads) to[c] += grad[(first + i) * a.cols + c];
      }
    }
  });
}

void rows_of_ids(const EmbeddingArgs& args, int* rows, Stream& stream) {
  const EmbeddingArgs a = args;
  for_each(a.count, "rows_of_ids", stream, [=] __device__(std::size_t i) {
    const long long row = row_of(a.ids[i], a.rows);
    rows[i] = row < 0 ? 0 : static_cast<int>(row);
  });
}

void clear_unnamed(const EmbeddingArgs& args, float* out, Stream& stream) {
  const EmbeddingArgs a = args;
  for_each(a.count * a.cols, "clear_unnamed", stream, [=] __device__(std::size_t i) {
    if (row_of(a.ids[i / a.cols], a.rows) < 0) out[i] = 0;
  });
}

}  // namespace imago::layers::cuda
