#include "train/cuda/update_kernels.h"

#include "layers/cuda/launch.cuh"

namespace imago::cuda {

namespace {

using kernels::UpdateArgs;
using kernels::UpdateKind;
using layers::cuda::block_sum_of;
using layers::cuda::for_each;
using layers::cuda::for_each_row;

constexpr std::size_t kChunk = 16384;  // elements of a gradient that a block adds up

__device__ float clipped(float value, float bound) { return value > bound ? bound : value < -bound ? -bound : value; }

}  // namespace

std::size_t square_partials(std::size_t count) { return (count + kChunk - 1) / kChunk; }

void clipped_squares(const float* gradient, std::size_t count, float bound, double* partials, Stream& stream) {
  for_each_row(square_partials(count), "clipped_squares", stream, [=] __device__(std::size_t chunk) {
    const float* const values = gradient + chunk * kChunk;
    const double sum = block_sum_of<double>(min(kChunk, count - chunk * kChunk), [&](std::size_t i) {
      const double value = static_cast<double>(clipped(values[i], bound));
      return isfinite(values[i]) ? value * value : static_cast<double>(NAN);
    });
    if (threadIdx.x == 0) partials[chunk] = sum;
  });
}

void update(const UpdateArgs& args, const StepFigures* figures, float norm_bound, Stream& stream) {
  const UpdateArgs a = args;
  for_each(a.count, "update", stream, [=] __device__(std::size_t i) {
    if (!isfinite(figures->loss) || !isfinite(figures->squares)) return;
    const double norm = sqrt(figures->squares), most = static_cast<double>(norm_bound);
    const float factor = static_cast<float>(most > 0 && norm > most ? most / norm : 1.0);
    const float g = clipped(a.gradient[i], a.bound) * factor;
    float w = a.weights[i];
    switch (a.kind) {
      case UpdateKind::plain: w -= a.rate * g; break;
      case UpdateKind::momentum: {
        const float m = a.momentum * a.moment1[i] + g;
        a.moment1[i] = m;
        w -= a.rate * m;
        break;
      }
      case UpdateKind::adam: {
        const float m1 = a.moment1[i] + (g - a.moment1[i]) * a.blend1;
        const float m2 = a.moment2[i] * a.beta2 + a.blend2 * g * g;
        a.moment1[i] = m1;
        a.moment2[i] = m2;
        w = w * a.keep - a.rate * (m1 / (sqrtf(m2) / a.root_correction2 + a.epsilon));
        break;
      }
    }
    a.weights[i] = w < a.floor ? a.floor : w;
  });
}

}  // namespace imago::cuda
