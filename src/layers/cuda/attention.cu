#include "kernels/cuda/each.cuh"
#include "layers/cuda/kernels.h"

namespace imago::layers::cuda {

using kernels::cuda::for_each;

namespace {

__device__ double warp_sum(double value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

/// Where a warp's row lies: one head of one token.
struct Place {
  std::size_t step, head;
  std::size_t row, tile;  ///< offsets in rows and tiles
};

__device__ Place place_of(const HeadTiles& s, std::size_t index) {
  const std::size_t step = index % s.steps, head = index / s.steps % s.heads, sequence = index / s.steps / s.heads;
  return {step, head, (sequence * s.steps + step) * s.row_stride + head * s.head_values, index * s.head_values};
}

__device__ double reciprocal_rms(const float* x, std::size_t count, double eps, unsigned lane) {
  double squares = 0;
  for (std::size_t i = lane; i < count; i += 32) squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return rsqrt(warp_sum(squares) / static_cast<double>(count) + eps);
}

/// body(index, lane) on a warp for each index below `count`.
template <class Body>
void for_each_warp(std::size_t count, const char* name, Stream& stream, const Body& body) {
  for_each(count * 32, name, stream, [=] __device__(std::size_t i) { body(i / 32, static_cast<unsigned>(i % 32)); });
}

struct Gather {
  HeadTiles s;
  const float* rows;
  float* tiles;

  __device__ void operator()(std::size_t index, unsigned lane) const {
    const Place place = place_of(s, index);
    const float* const x = rows + place.row;
    float* const y = tiles + place.tile;
    const float* const weight = s.norm == nullptr ? nullptr : s.norm + place.head * s.norm_stride;
    const float factor = weight == nullptr ? 1 : static_cast<float>(reciprocal_rms(x, s.head_values, s.eps, lane));
    const auto normed = [&](std::size_t i) { return weight == nullptr ? x[i] : x[i] * factor * weight[i]; };
    const std::size_t half = s.rope == nullptr ? 0 : s.rotary / 2;
    for (std::size_t j = lane; j < half; j += 32) {
      const float cosine = s.rope[place.step * s.rotary + j], sine = s.rope[place.step * s.rotary + half + j];
      const float a = normed(j), b = normed(half + j);
      y[j] = a * cosine - b * sine;
      y[half + j] = a * sine + b * cosine;
    }
    for (std::size_t i = 2 * half + lane; i < s.head_values; i += 32) y[i] = normed(i);
  }
};

struct ScatterGradient {
  HeadTiles s;
  const float* grad_tiles;
  const float* rows;
  float* grad_rows;

  __device__ void operator()(std::size_t index, unsigned lane) const {
    const Place place = place_of(s, index);
    const float* const grad = grad_tiles + place.tile;
    float* const to = grad_rows + place.row;
    const std::size_t half = s.rope == nullptr ? 0 : s.rotary / 2;
    for (std::size_t j = lane; j < half; j += 32) {
      const float cosine = s.rope[place.step * s.rotary + j], sine = s.rope[place.step * s.rotary + half + j];
      const float a = grad[j], b = grad[half + j];
      to[j] = a * cosine + b * sine;
      to[half + j] = b * cosine - a * sine;
    }
    for (std::size_t i = 2 * half + lane; i < s.head_values; i += 32) to[i] = grad[i];
    if (s.norm == nullptr) return;
    __syncwarp();
    const float* const x = rows + place.row;
    const float* const weight = s.norm + place.head * s.norm_stride;
    const double factor = reciprocal_rms(x, s.head_values, s.eps, lane);
    double along = 0;
    for (std::size_t i = lane; i < s.head_values; i += 32) along += static_cast<double>(to[i] * weight[i]) * x[i];
    along = warp_sum(along);
    const float straight = static_cast<float>(factor);
    const float inward = static_cast<float>(along * factor * factor * factor / static_cast<double>(s.head_values));
    __syncwarp();
    for (std::size_t i = lane; i < s.head_values; i += 32) to[i] = to[i] * weight[i] * straight - x[i] * inward;
  }
};

struct CausalSoftmax {
  float* scores;
  std::size_t steps;
  float factor;

  __device__ void operator()(std::size_t row, unsigned lane) const {
    float* const s = scores + row * steps;
    const std::size_t seen = row % steps + 1;
    float largest = -INFINITY;
    for (std::size_t u = lane; u < seen; u += 32) largest = fmaxf(largest, s[u]);
    for (int offset = 16; offset > 0; offset /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
    float sum = 0;
    for (std::size_t u = lane; u < seen; u += 32) {
      s[u] = expf((s[u] - largest) * factor);
      sum += s[u];
    }
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    const float inverse = 1 / sum;
    for (std::size_t u = lane; u < steps; u += 32) s[u] = u < seen ? s[u] * inverse : 0;
  }
};

std::size_t rows_in(const HeadTiles& s) { return s.sequences * s.heads * s.steps; }

}  // namespace

void gather_heads(const HeadTiles& shape, const float* rows, float* tiles, Stream& stream) {
  for_each_warp(rows_in(shape), "gather_heads", stream, Gather{shape, rows, tiles});
}

void scatter_heads(const HeadTiles& shape, const float* tiles, float* rows, Stream& stream) {
  const HeadTiles s = shape;
  for_each(rows_in(s) * s.head_values, "scatter_heads", stream,
           [=] __device__(std::size_t i) { rows[place_of(s, i / s.head_values).row + i % s.head_values] = tiles[i]; });
}

void scatter_gradients(const HeadTiles& shape, const float* grad_tiles, const float* rows, float* grad_rows,
                       Stream& stream) {
  for_each_warp(rows_in(shape), "scatter_gradients", stream, ScatterGradient{shape, grad_tiles, rows, grad_rows});
}

void causal_softmax(float* scores, std::size_t rows, std::size_t steps, float factor, Stream& stream) {
  for_each_warp(rows, "causal_softmax", stream, CausalSoftmax{scores, steps, factor});
}

}  // namespace imago::layers::cuda
