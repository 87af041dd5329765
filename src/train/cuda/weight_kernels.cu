#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/each.cuh"
#include "train/cuda/kernels.h"

namespace imago::cuda {

namespace {

using kernels::UpdateArgs;
using kernels::UpdateKind;
using kernels::cuda::block_sum_of;
using kernels::cuda::for_each;
using kernels::cuda::for_each_row;
using kernels::cuda::kThreads;

constexpr std::size_t kChunk = 16384;  // weights that a block reads

/// Groups of weights with one scale: how many, their size, and chunks of each.
struct Groups {
  std::size_t count, size, chunks;
};

Groups groups_of(std::size_t count, std::size_t scale_group) {
  const std::size_t size = scale_group == 0 ? count : scale_group;
  return {size == 0 ? 0 : (count + size - 1) / size, size, (size + kChunk - 1) / kChunk};
}

/// What rounding needs to know of a type.
struct Type {
  DType dtype;
  NumberKind kind;
  float divisor;
  double lowest, highest;  // of integers
};

Type type_of(DType dtype) {
  const DTypeInfo& facts = info(dtype);
  const bool is_unsigned = facts.kind == NumberKind::unsigned_integer;
  const double beyond = ldexp(1.0, is_unsigned ? facts.bits : facts.bits - 1);
  const double lowest = is_unsigned ? 0 : facts.kind == NumberKind::ternary ? -1 : -beyond;
  return {dtype, facts.kind, facts.scale_divisor, lowest, beyond - 1};
}

/// 0 0.5 1 1.5 2 3 4 6. Ties go to the even code, so the comparisons alternate between < and <=.
__device__ float nearest_fp4(float t) {
  const float a = fabsf(t);
  if (isnan(t)) return 0;
  const float value = a <= 0.25f   ? 0.0f
                      : a < 0.75f  ? 0.5f
                      : a <= 1.25f ? 1.0f
                      : a < 1.75f  ? 1.5f
                      : a <= 2.5f  ? 2.0f
                      : a < 3.5f   ? 3.0f
                      : a <= 5.0f  ? 4.0f
                                   : 6.0f;
  return copysignf(value, t);
}

__device__ float nearest_fp8(float t, __nv_fp8_interpretation_t type) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(__nv_cvt_float_to_fp8(t, __NV_SATFINITE, type), type)));
}

__device__ float rounded(const Type& type, float w, float scale, float zero_point) {
  switch (type.kind) {
    case NumberKind::wide_float:
      if (type.dtype == DType::float16) return __half2float(__float2half_rn(w));
      if (type.dtype == DType::bfloat16) return __bfloat162float(__float2bfloat16_rn(w));
      return w;
    case NumberKind::binary: return w >= 0 ? scale : -scale;
    case NumberKind::narrow_float:
      if (type.dtype == DType::fp4) return nearest_fp4(w / scale) * scale;
      return nearest_fp8(w / scale, type.dtype == DType::fp8e4m3 ? __NV_E4M3 : __NV_E5M2) * scale;
    case NumberKind::signed_integer:
    case NumberKind::unsigned_integer:
    case NumberKind::ternary: break;
  }
  const float t = roundf(w / scale);  // halves away from zero
  const double zero = static_cast<double>(zero_point);
  const double code = isnan(t) ? zero : fmin(fmax(static_cast<double>(t) + zero, type.lowest), type.highest);
  return (static_cast<float>(code) - zero_point) * scale;
}

/// The largest of `value` of so many weights, and of 0.
template <class Value>
__device__ double largest_of(std::size_t count, Value value) {
  __shared__ float largest[kThreads];
  float mine = 0;
  for (std::size_t i = threadIdx.x; i < count; i += kThreads) mine = fmaxf(mine, value(i));
  __syncthreads();
  largest[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) largest[threadIdx.x] = fmaxf(largest[threadIdx.x], largest[threadIdx.x + step]);
    __syncthreads();
  }
  return static_cast<double>(largest[0]);
}

/// The figure of a chunk that its scale is derived from: max|w|, or Σ|w| for binary; of unsigned types max w.
__device__ double figure_of(const Type& type, const float* weights, std::size_t count) {
  if (type.kind == NumberKind::binary) {
    return block_sum_of<double>(count, [&](std::size_t i) { return isnan(weights[i]) ? 0.0f : fabsf(weights[i]); });
  }
  const bool is_unsigned = type.kind == NumberKind::unsigned_integer;
  return largest_of(count, [&](std::size_t i) { return is_unsigned ? weights[i] : fabsf(weights[i]); });
}

/// [scale, zero point] for each group.
void derive_scales(const Rounding& a, const Type& type, const Groups& groups, double* scales, Stream& stream) {
  const float* const master = a.master;
  double* const partials = a.partials;  // of each chunk: its figure, and -min w of unsigned types
  const bool is_unsigned = type.kind == NumberKind::unsigned_integer;
  for_each_row(groups.count * groups.chunks, "derive_scales", stream, [=] __device__(std::size_t index) {
    const std::size_t first = index % groups.chunks * kChunk, count = min(kChunk, groups.size - first);
    const float* const weights = master + index / groups.chunks * groups.size + first;
    const double figure = figure_of(type, weights, count);
    const double below = is_unsigned ? largest_of(count, [&](std::size_t i) { return -weights[i]; }) : 0.0;
    if (threadIdx.x == 0) {
      partials[2 * index] = figure;
      partials[2 * index + 1] = below;
    }
  });
  for_each(groups.count, "scales", stream, [=] __device__(std::size_t group) {
    double figure = 0, below = 0;
    for (std::size_t i = 0; i < groups.chunks; ++i) {
      const double* const part = partials + 2 * (group * groups.chunks + i);
      figure = type.kind == NumberKind::binary ? figure + part[0] : fmax(figure, part[0]);
      below = fmax(below, part[1]);
    }
    const bool shifts = below > 0 && isfinite(below) && isfinite(figure);  // the host's needs_zero_point
    const double divisor = static_cast<double>(type.divisor), width = figure + below;
    float scale =
        static_cast<float>(figure) / (type.kind == NumberKind::binary ? static_cast<float>(groups.size) : type.divisor);
    if (shifts) scale = static_cast<float>(width / divisor);
    scales[2 * group] = scale > 0 && isfinite(scale) ? scale : 1.0f;
    scales[2 * group + 1] = shifts ? round(below / width * divisor) : 0.0;
  });
}

__device__ float clipped(float value, float bound) { return value > bound ? bound : value < -bound ? -bound : value; }

}  // namespace

std::size_t rounding_partials(std::size_t count, std::size_t scale_group) {
  const Groups groups = groups_of(count, scale_group);
  return 2 * groups.count * (groups.chunks + 1);
}

void round_weights(const Rounding& args, Stream& stream) {
  const Rounding a = args;
  const Type type = type_of(a.dtype);
  const Groups groups = groups_of(a.count, a.scale_group);
  double* const scales = a.partials + 2 * groups.count * groups.chunks;
  const bool derived = type.kind != NumberKind::wide_float && a.explicit_scale == 0;
  if (derived) derive_scales(a, type, groups, scales, stream);
  for_each(a.count, "round_weights", stream, [=] __device__(std::size_t i) {
    const double* const own = scales + 2 * (i / groups.size);
    const float scale = derived ? static_cast<float>(own[0]) : a.explicit_scale;
    const float zero_point = derived ? static_cast<float>(own[1]) : a.explicit_zero;
    a.rounded[i] = rounded(type, a.master[i], scale, zero_point);
  });
}

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
