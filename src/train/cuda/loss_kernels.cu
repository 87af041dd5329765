#include "kernels/cuda/each.cuh"
#include "train/cuda/kernels.h"

namespace imago::cuda {

namespace {

using kernels::cuda::block_sum_of;
using kernels::cuda::for_each;
using kernels::cuda::for_each_row;
using kernels::cuda::kThreads;

constexpr std::size_t kChunk = 4096;  // values that a block adds up

/// partials[chunk] = Σ value(i), then *out = factor · Σ partials.
template <class Value>
void sum_chunks(const ValueLoss& a, double factor, const char* name, Stream& stream, const Value& value) {
  const std::size_t count = a.count;
  double* const partials = a.partials;
  for_each_row(partial_count(count), name, stream, [=] __device__(std::size_t chunk) {
    const std::size_t first = chunk * kChunk;
    const std::size_t length = min(kChunk, count - first);
    const double sum = block_sum_of<double>(length, [&](std::size_t i) { return value(first + i); });
    if (threadIdx.x == 0) partials[chunk] = sum;
  });
  sum_values(partials, partial_count(count), factor, a.out, stream);
}

struct SquaredDifference {
  ValueLoss a;
  float factor;
  __device__ double operator()(std::size_t i) const {
    const float difference = a.output[i] - a.target[i];
    if (a.gradient != nullptr) a.gradient[i] = difference * factor;
    return static_cast<double>(difference) * difference;
  }
};

struct NegativeLog {
  ValueLoss a;
  __device__ double operator()(std::size_t i) const {
    const double probability = a.output[i] + 1e-10;
    if (a.gradient != nullptr) {
      a.gradient[i] = static_cast<float>(-a.target[i] / probability / static_cast<double>(a.count));
    }
    return -a.target[i] * log(probability);
  }
};

__device__ float block_max(const float* values, std::size_t count) {
  __shared__ float parts[kThreads];
  float largest = -INFINITY;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) largest = fmaxf(largest, values[i]);
  __syncthreads();
  parts[threadIdx.x] = largest;
  __syncthreads();
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) parts[threadIdx.x] = fmaxf(parts[threadIdx.x], parts[threadIdx.x + step]);
    __syncthreads();
  }
  return parts[0];
}

}  // namespace

std::size_t partial_count(std::size_t count) { return (count + kChunk - 1) / kChunk; }

void sum_values(const double* values, std::size_t count, double factor, double* out, Stream& stream) {
  for_each_row(1, "sum_values", stream, [=] __device__(std::size_t) {
    const double sum = block_sum_of<double>(count, [&](std::size_t i) { return values[i]; });
    if (threadIdx.x == 0) *out = sum * factor;
  });
}

void mean_squared_error(const ValueLoss& args, Stream& stream) {
  sum_chunks(args, 1 / static_cast<double>(args.count), "mean_squared_error", stream,
             SquaredDifference{args, 2 / static_cast<float>(args.count)});
}

void cross_entropy(const ValueLoss& args, Stream& stream) {
  sum_chunks(args, 1 / static_cast<double>(args.count), "cross_entropy", stream, NegativeLog{args});
}

void cross_entropy_of_logits(const LogitsLoss& args, Stream& stream) {
  const LogitsLoss a = args;
  const float class_factor = a.scored == 0 ? 0 : 1 / static_cast<float>(a.scored);
  for_each_row(a.rows, "cross_entropy_of_logits", stream, [=] __device__(std::size_t row) {
    const float* const z = a.output + row * a.cols;
    float* const gradient = a.gradient == nullptr ? nullptr : a.gradient + row * a.cols;
    if (a.by_class && a.target[row] == -1) {
      for (std::size_t i = threadIdx.x; gradient != nullptr && i < a.cols; i += kThreads) gradient[i] = 0;
      if (threadIdx.x == 0) a.row_losses[row] = 0;
      return;
    }
    const float largest = block_max(z, a.cols);
    const double sum = block_sum_of<double>(a.cols, [&](std::size_t i) { return expf(z[i] - largest); });
    const double normalizer = static_cast<double>(largest) + log(sum);
    const float inverse = static_cast<float>(1 / sum);
    if (a.by_class) {
      const std::size_t wanted = static_cast<std::size_t>(a.target[row]);
      for (std::size_t i = threadIdx.x; gradient != nullptr && i < a.cols; i += kThreads) {
        const float p = expf(z[i] - largest) * inverse;
        gradient[i] = (i == wanted ? p - 1 : p) * class_factor;
      }
      if (threadIdx.x == 0) a.row_losses[row] = normalizer - static_cast<double>(z[wanted]);
      return;
    }
    const float* const shares = a.target + row * a.cols;
    const float total = static_cast<float>(block_sum_of<double>(a.cols, [&](std::size_t i) { return shares[i]; }));
    const double entropy = block_sum_of<double>(
        a.cols, [&](std::size_t i) { return shares[i] * (normalizer - static_cast<double>(z[i])); });
    for (std::size_t i = threadIdx.x; gradient != nullptr && i < a.cols; i += kThreads) {
      gradient[i] = (expf(z[i] - largest) * inverse * total - shares[i]) / static_cast<float>(a.rows);
    }
    if (threadIdx.x == 0) a.row_losses[row] = entropy;
  });
  const std::size_t divisor = a.by_class ? a.scored : a.rows;
  sum_values(a.row_losses, a.rows, divisor == 0 ? 0 : 1 / static_cast<double>(divisor), a.out, stream);
}

void multi_head_entropy(const HeadsLoss& args, Stream& stream) {
  const HeadsLoss a = args;
  const double rows = static_cast<double>(a.rows);
  for_each(a.rows * a.heads, "multi_head_entropy", stream, [=] __device__(std::size_t index) {
    const std::size_t row = index / a.heads, head = index % a.heads;
    const std::size_t first = row * a.cols + static_cast<std::size_t>(a.starts[head]);
    const int width = a.starts[head + 1] - a.starts[head];
    const bool active = a.mask == nullptr || a.mask[index] > 0.5f;
    double largest = -INFINITY, sum = 0, entropy = 0;
    for (int i = 0; i < width; ++i) largest = fmax(largest, static_cast<double>(a.output[first + i]));
    for (int i = 0; i < width; ++i) sum += exp(static_cast<double>(a.output[first + i]) - largest);
    for (int i = 0; i < width; ++i) {
      const double p = exp(static_cast<double>(a.output[first + i]) - largest) / sum;
      const double target = static_cast<double>(a.target[first + i]);
      entropy -= target * log(p + 1e-7);
      if (a.gradient != nullptr) a.gradient[first + i] = active ? static_cast<float>((p - target) / rows) : 0.0f;
    }
    a.head_losses[index] = active ? entropy : 0;
  });
  sum_values(a.head_losses, a.rows * a.heads, 1 / rows, a.out, stream);
}

}  // namespace imago::cuda
