#include "layers/cuda/launch.cuh"
#include "layers/cuda/sequence_kernels.h"

namespace imago::layers::cuda {

namespace {

__device__ float sigmoid(float z) { return 1 / (1 + expf(-z)); }

}  // namespace

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
    const float i = sigmoid(sum(0)), f = sigmoid(sum(1)), g = tanhf(sum(2)), o = sigmoid(sum(3));
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
