#include "layers/attention_core.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/parallel.h"
#include "kernels/ops.h"
#include "layers/linear.h"
#include "math/products.h"

namespace imago::layers {

namespace {

using math::Transpose;
using math::Write;

/// Queries [first, last) and the `last` keys they may see.
struct Block {
  std::size_t first, last;
  std::size_t rows() const noexcept { return last - first; }
  std::size_t count() const noexcept { return rows() * last; }
};

Block block_at(std::size_t first, std::size_t steps) noexcept {
  return {.first = first, .last = std::min(steps, first + kBlockRows)};
}

double score_scale(std::size_t width) noexcept { return 1 / std::sqrt(static_cast<double>(width)); }

/// Rows of the tile that belong to the block, or its keys.
template <class T>
std::span<T> rows_of_block(std::span<T> tile, const Block& block, std::size_t width) {
  return tile.subspan(block.first * width, block.rows() * width);
}
template <class T>
std::span<T> keys_of_block(std::span<T> tile, const Block& block, std::size_t width) {
  return tile.first(block.last * width);
}

float dot(const float* a, const float* b, std::size_t count) noexcept {
  // Sixteen independent sums, which the compiler may keep in vectors, in an order that is the same everywhere.
  constexpr std::size_t kLanes = 16;
  float lanes[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
  }
  double sum = 0;
  for (const float lane : lanes) sum += static_cast<double>(lane);
  for (; i < count; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return static_cast<float>(sum);
}

/// Gradients of probabilities become those of products q · k.
void softmax_backward(const Block& block, std::span<const float> probabilities, float scale,
                      std::span<float> gradient) {
  for (std::size_t row = 0; row < block.rows(); ++row) {
    const float* __restrict const p = probabilities.data() + row * block.last;
    float* __restrict const g = gradient.data() + row * block.last;
    const std::size_t seen = block.first + row + 1;
    const float mean = dot(p, g, seen);
    for (std::size_t u = 0; u < seen; ++u) g[u] = p[u] * (g[u] - mean) * scale;
    std::fill(g + seen, g + block.last, 0.0f);
  }
}

/// (a, b) becomes (a · cos - b · sin, a · sin + b · cos); `direction` -1 turns back. The halves do not overlap.
template <class T>
void turn(T* __restrict low, T* __restrict high, const T* __restrict cosines, const T* __restrict sines,
          std::size_t half, T direction) noexcept {
  for (std::size_t j = 0; j < half; ++j) {
    const T a = low[j];
    const T b = high[j];
    const T sine = direction * sines[j];
    low[j] = a * cosines[j] - b * sine;
    high[j] = a * sine + b * cosines[j];
  }
}

template <class T>
void turn_row(const AttentionTable<T>& table, std::size_t position, T direction, T* row) {
  const std::size_t half = table.pairs;
  const T* const cosines = table.at(position).data();
  turn(row, row + half, cosines, cosines + half, half, direction);
}

}  // namespace

template <class T>
AttentionTable<T>::AttentionTable(std::size_t values, double rope_base, std::size_t steps)
    : head_values(values), base(rope_base), positions(steps) {
  std::vector<double> frequencies(pairs);
  for (std::size_t j = 0; j < pairs; ++j) {
    frequencies[j] = std::pow(base, -2 * static_cast<double>(j) / static_cast<double>(head_values));
  }
  cos_sin.resize(checked_mul(positions, 2 * pairs, "attention angles"));
  parallel_rows(
      positions, 1,
      [&](std::size_t position) {
        T* const to = cos_sin.data() + position * 2 * pairs;
        for (std::size_t j = 0; j < pairs; ++j) {
          const double angle = static_cast<double>(position) * frequencies[j];
          to[j] = static_cast<T>(std::cos(angle));
          to[pairs + j] = static_cast<T>(std::sin(angle));
        }
      },
      256);
}

template struct AttentionTable<float>;
template struct AttentionTable<double>;

template <class T>
void gather_head(const HeadRows<T>& from, std::size_t steps, std::size_t width, const HeadTransform<T>& transform,
                 T* tile) {
  for (std::size_t t = 0; t < steps; ++t) {
    const T* const row = from.first + t * from.stride;
    T* const to = tile + t * width;
    if (transform.norm.empty()) {
      std::copy_n(row, width, to);
    } else {
      norm_row(row, transform.norm, transform.eps, to);
    }
    if (transform.table != nullptr) turn_row(*transform.table, t, T{1}, to);
  }
}

template void gather_head(const HeadRows<float>&, std::size_t, std::size_t, const HeadTransform<float>&, float*);
template void gather_head(const HeadRows<double>&, std::size_t, std::size_t, const HeadTransform<double>&, double*);

template <class T>
void scatter_head(const T* tile, std::size_t steps, std::size_t width, T* first, std::size_t stride) {
  for (std::size_t t = 0; t < steps; ++t) std::copy_n(tile + t * width, width, first + t * stride);
}

template void scatter_head(const float*, std::size_t, std::size_t, float*, std::size_t);
template void scatter_head(const double*, std::size_t, std::size_t, double*, std::size_t);

void scatter_gradient(const float* grad_tile, const HeadRows<float>& from, std::size_t steps, std::size_t width,
                      const HeadTransform<float>& transform, float* grad_first) {
  for (std::size_t t = 0; t < steps; ++t) {
    float* const to = grad_first + t * from.stride;
    std::copy_n(grad_tile + t * width, width, to);
    if (transform.table != nullptr) turn_row(*transform.table, t, -1.0f, to);
    if (!transform.norm.empty()) {
      norm_row_backward(from.first + t * from.stride, transform.norm, transform.eps, to, to);
    }
  }
}

std::size_t block_probability_count(std::size_t steps) {
  return checked_mul(std::min(steps, kBlockRows), steps, "attention probabilities");
}

std::size_t probability_count(std::size_t steps) {
  (void)checked_mul(steps, steps, "attention probabilities");  // more than all blocks
  std::size_t count = 0;
  for (std::size_t first = 0; first < steps; first += kBlockRows) count += block_at(first, steps).count();
  return count;
}

namespace {

template <class T>
void attend_blocks(const HeadTileOf<T>& head, std::span<T> probabilities, std::span<T> out) {
  const std::size_t width = head.width;
  const bool keep = probabilities.size() == probability_count(head.steps);
  assert(keep || probabilities.size() == block_probability_count(head.steps));
  std::size_t offset = 0;
  for (std::size_t first = 0; first < head.steps; first += kBlockRows) {
    const Block block = block_at(first, head.steps);
    const std::span<T> p = probabilities.subspan(offset, block.count());
    if (keep) offset += block.count();
    math::gemm({.m = block.rows(), .n = block.last, .k = width, .b = Transpose::yes},
               rows_of_block(head.q, block, width), keys_of_block(head.k, block, width), p);
    for (std::size_t row = 0; row < block.rows(); ++row) {
      T* const scores = p.data() + row * block.last;
      std::fill(scores + block.first + row + 1, scores + block.last, -std::numeric_limits<T>::infinity());
    }
    kernels::softmax(p, block.last, static_cast<T>(score_scale(width)));
    math::gemm({.m = block.rows(), .n = width, .k = block.last}, p, keys_of_block(head.v, block, width),
               rows_of_block(out, block, width));
  }
}

}  // namespace

void attend(const HeadTile& head, std::span<float> probabilities, std::span<float> out) {
  attend_blocks(head, probabilities, out);
}

void attend(const HeadTileOf<double>& head, std::span<double> probabilities, std::span<double> out) {
  attend_blocks(head, probabilities, out);
}

void attend_backward(const HeadTile& head, std::span<const float> probabilities, std::span<float> scratch,
                     const HeadGradient& gradient) {
  const std::size_t width = head.width;
  assert(probabilities.size() == probability_count(head.steps));
  assert(scratch.size() == block_probability_count(head.steps));
  for (std::size_t first = 0; first < head.steps; first += kBlockRows) {
    const Block block = block_at(first, head.steps);
    const std::span<const float> p = probabilities.first(block.count());
    probabilities = probabilities.subspan(block.count());
    const std::span<float> g = scratch.first(block.count());
    const std::span<const float> grad_out = rows_of_block(gradient.out, block, width);
    math::gemm({.m = block.last, .n = width, .k = block.rows(), .a = Transpose::yes}, p, grad_out,
               keys_of_block(gradient.v, block, width), Write::add);
    math::gemm({.m = block.rows(), .n = block.last, .k = width, .b = Transpose::yes}, grad_out,
               keys_of_block(head.v, block, width), g);
    softmax_backward(block, p, static_cast<float>(score_scale(width)), g);
    math::gemm({.m = block.rows(), .n = width, .k = block.last}, g, keys_of_block(head.k, block, width),
               rows_of_block(gradient.q, block, width));
    math::gemm({.m = block.last, .n = width, .k = block.rows(), .a = Transpose::yes}, g,
               rows_of_block(head.q, block, width), keys_of_block(gradient.k, block, width), Write::add);
  }
}

}  // namespace imago::layers
