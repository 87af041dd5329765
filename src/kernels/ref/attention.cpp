// Attention in plain C++, in float64, rounded once: the definition of correct.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "imago/numeric.h"
#include "kernels/folders.h"
#include "quant/blocks.h"

namespace imago::kernels::ref {

namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

double value_at(CacheType type, const std::byte* row, std::size_t i) noexcept {
  switch (type) {
    case CacheType::f32: {
      float value;
      std::memcpy(&value, row + i * sizeof value, sizeof value);
      return value;
    }
    case CacheType::f16: {
      Half code;
      std::memcpy(&code, row + i * sizeof code, sizeof code);
      return from_half(code);
    }
    case CacheType::q8_0: break;
  }
  quant::Q8_0 block;
  std::memcpy(&block, row + i / quant::Q8_0::kValues * sizeof block, sizeof block);
  Half scale;
  std::memcpy(&scale, &block.scale, sizeof scale);
  return static_cast<double>(from_half(scale)) * block.q[i % quant::Q8_0::kValues];
}

const std::byte* row_at(const AttentionArgs& a, const std::byte* cache, std::size_t key) noexcept {
  const std::size_t within = key & ((std::size_t{1} << a.page_shift) - 1);
  return cache + a.pages[key >> a.page_shift] * a.page_bytes + within * a.row_bytes;
}

/// Once over the keys for the largest score, once more for the sums.
/// `sink`: minus infinity if there is none.
void attend(const AttentionArgs& a, const float* q, float* y, KeyRange range, double sink) noexcept {
  const auto score = [&](std::size_t key) {
    double sum = 0;
    for (std::size_t i = 0; i < a.head_values; ++i) {
      sum += static_cast<double>(q[i]) * value_at(a.type, row_at(a, a.keys, key), i);
    }
    const double cap = a.cap, t = static_cast<double>(a.scale) * sum;
    return cap > 0 ? cap * std::tanh(t / cap) : t;
  };
  double largest = sink;
  for (std::size_t k = 0; k < range.count; ++k) largest = std::max(largest, score(range.first + k));

  double* const sums = reinterpret_cast<double*>(a.scratch);
  std::fill_n(sums, a.head_values, 0.0);
  double total = sink == kNone ? 0 : std::exp(sink - largest);
  for (std::size_t k = 0; k < range.count; ++k) {
    const double weight = std::exp(score(range.first + k) - largest);
    const std::byte* row = row_at(a, a.values, range.first + k);
    for (std::size_t i = 0; i < a.head_values; ++i) sums[i] += weight * value_at(a.type, row, i);
    total += weight;
  }
  for (std::size_t i = 0; i < a.head_values; ++i) y[i] = total == 0 ? 0.0f : static_cast<float>(sums[i] / total);
}

}  // namespace

void run(const AttentionArgs& a) noexcept {
  for (std::size_t token = 0; token < a.tokens; ++token) {
    for (std::size_t head = 0; head < a.group; ++head) {
      const std::size_t offset = token * a.token_stride + head * a.head_values;
      const double sink = a.sinks == nullptr ? kNone : static_cast<double>(a.sinks[head]);
      attend(a, a.q + offset, a.y + offset, a.ranges[token], sink);
    }
  }
}

}  // namespace imago::kernels::ref
