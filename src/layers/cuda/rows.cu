#include "kernels/cuda/each.cuh"
#include "kernels/cuda/scalar_ops.h"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

using kernels::cuda::block_sum_of;
using kernels::cuda::for_each;
using kernels::cuda::for_each_row;
using kernels::cuda::kThreads;
using kernels::cuda::sigmoid_of;

// ---- norms

namespace {

__device__ void rms_row(const NormBackward& a, const float* x, const float* dy, float* dx, float* figures) {
  const double n = static_cast<double>(a.cols);
  const double squares = block_sum_of<double>(a.cols, [&](std::size_t i) { return x[i] * x[i]; });
  const double product = block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i] * x[i]; });
  const double inverse = rsqrt(squares / n + a.eps);
  const float scale = static_cast<float>(inverse);
  const float towards_x = static_cast<float>(product * inverse * inverse * inverse / n);
  for (std::size_t i = threadIdx.x; i < a.cols; i += kThreads) {
    dx[i] = dy[i] * a.weight[i] * scale - x[i] * towards_x;
  }
  if (figures != nullptr && threadIdx.x == 0) {
    figures[0] = 0;
    figures[1] = scale;
  }
}

__device__ void layer_norm_row(const NormBackward& a, const float* x, const float* dy, float* dx, float* figures) {
  const double n = static_cast<double>(a.cols);
  const float mean = static_cast<float>(block_sum_of<double>(a.cols, [&](std::size_t i) { return x[i]; }) / n);
  const double squares = block_sum_of<double>(a.cols, [&](std::size_t i) { return (x[i] - mean) * (x[i] - mean); });
  const float inverse = static_cast<float>(rsqrt(squares / n + a.eps));
  const double products =
      block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i] * ((x[i] - mean) * inverse); });
  const double sum = block_sum_of<double>(a.cols, [&](std::size_t i) { return dy[i] * a.weight[i]; });
  const float mean_dy = static_cast<float>(sum / n), mean_product = static_cast<float>(products / n);
  for (std::size_t i = threadIdx.x; i < a.cols; i += kThreads) {
    dx[i] = (dy[i] * a.weight[i] - mean_dy - (x[i] - mean) * inverse * mean_product) * inverse;
  }
  if (figures != nullptr && threadIdx.x == 0) {
    figures[0] = mean;
    figures[1] = inverse;
  }
}

}  // namespace

void norm_backward(const NormBackward& args, Stream& stream) {
  const NormBackward a = args;
  for_each_row(a.rows, "norm_backward", stream, [=] __device__(std::size_t row) {
    const std::size_t at = row * a.cols;
    float* const figures = a.figures == nullptr ? nullptr : a.figures + 2 * row;
    if (a.layer_norm) {
      layer_norm_row(a, a.x + at, a.grad_y + at, a.grad_x + at, figures);
    } else {
      rms_row(a, a.x + at, a.grad_y + at, a.grad_x + at, figures);
    }
  });
}

// ---- embeddings

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

// ---- recurrent layers and KMeans

void rnn_step(const StepShape& shape, const float* sums, const float* product, float* h, float* post, Stream& stream) {
  const StepShape s = shape;
  for_each(s.batch * s.hidden, "rnn_step", stream, [=] __device__(std::size_t i) {
    const std::size_t at = (i / s.hidden * s.steps + s.t) * s.hidden + i % s.hidden;
    const float value = tanhf(sums[at] + (product == nullptr ? 0.0f : product[i]));
    h[i] = value;
    post[at] = value;
  });
}

void lstm_step(const StepShape& shape, const float* sums, const float* products, float* c, float* h, float* post,
               Stream& stream) {
  const StepShape s = shape;
  const std::size_t step = s.batch * s.hidden, all = step * s.steps;
  for_each(step, "lstm_step", stream, [=] __device__(std::size_t n) {
    const std::size_t at = (n / s.hidden * s.steps + s.t) * s.hidden + n % s.hidden;
    const auto sum = [&](std::size_t gate) {
      return sums[gate * all + at] + (products == nullptr ? 0.0f : products[gate * step + n]);
    };
    const float i = sigmoid_of(sum(0)), f = sigmoid_of(sum(1)), g = tanhf(sum(2)), o = sigmoid_of(sum(3));
    const float before = s.t == 0 ? 0.0f : c[n];
    const float now = f * before + i * g;
    c[n] = now;
    h[n] = o * tanhf(now);
    post[at] = h[n];
  });
}

void assign_clusters(const AssignArgs& args, Stream& stream) {
  const AssignArgs a = args;
  for_each_row(a.rows, "assign_clusters", stream, [=] __device__(std::size_t row) {
    double* const distances = a.distances + row * a.clusters;
    for (std::size_t j = 0; j < a.clusters; ++j) {
      const double distance = block_sum_of<double>(a.width, [&](std::size_t i) {
        const double d = static_cast<double>(a.x[row * a.width + i]) - static_cast<double>(a.centers[j * a.width + i]);
        return d * d;
      });
      if (threadIdx.x == 0) distances[j] = distance;
    }
    __syncthreads();
    // The nearest center is the reference: what is far from all centers is still assigned.
    double nearest = distances[0];
    for (std::size_t j = 1; j < a.clusters; ++j) nearest = fmin(nearest, distances[j]);
    const auto weight = [&](std::size_t j) { return exp(-(distances[j] - nearest) * a.half_inverse_variance); };
    const double sum = block_sum_of<double>(a.clusters, weight);
    for (std::size_t j = threadIdx.x; j < a.clusters; j += kThreads) {
      a.a[row * a.clusters + j] = static_cast<float>(weight(j) / sum);
    }
  });
}

}  // namespace imago::layers::cuda
