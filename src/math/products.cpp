#include "math/products.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/checked.h"
#include "base/line_vector.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "math/backend.h"

namespace imago::math {

namespace {

// Multiplications worth a thread: some 5 to 10 µs of one core.
constexpr std::size_t kPartWork = 1u << 18;

// Lines of C per part are multiples of these. The tiles that oneDNN computes with AVX-512 have 48 columns and 8 rows,
// but parts of whole tiles would differ too much in size where there are few: a vector of columns is enough.
constexpr std::size_t kRowGrain = 8;
constexpr std::size_t kColGrain = 16;

void check_matrix(std::string_view name, std::size_t size, std::size_t rows, std::size_t cols) {
  if (size != checked_mul(rows, cols, "a matrix")) {
    throw ShapeError(fmt::format("[gemm] {} has {} values, not {} × {}", name, size, rows, cols));
  }
}

/// Lines of `line_work` multiplications that are worth a part.
std::size_t grain_of(std::size_t line_work, std::size_t multiple) {
  const std::size_t lines = std::max<std::size_t>(1, kPartWork / std::max<std::size_t>(1, line_work));
  return (lines + multiple - 1) / multiple * multiple;
}

}  // namespace

void gemm(const GemmShape& shape, std::span<const float> a, std::span<const float> b, std::span<float> c, Write write,
          const Backend& backend) {
  const auto [m, n, k, transpose_a, transpose_b] = shape;
  check_matrix("A", a.size(), m, k);
  check_matrix("B", b.size(), k, n);
  check_matrix("C", c.size(), m, n);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (write == Write::replace) std::ranges::fill(c, 0.0f);
    return;
  }
  const GemmArgs whole{.m = m,
                       .n = n,
                       .k = k,
                       .a = {a.data(), transpose_a == Transpose::no ? k : m, transpose_a},
                       .b = {b.data(), transpose_b == Transpose::no ? n : k, transpose_b},
                       .c = c.data(),
                       .c_stride = n,
                       .write = write};
  // Along the longer side of C: each part reads the other operand whole, which is then the smaller one. Never along k,
  // whose parts would have to be added up.
  if (m >= n) {
    const std::size_t row_step = transpose_a == Transpose::no ? k : 1;
    parallel_for(m, grain_of(n * k, kRowGrain), [&](std::size_t begin, std::size_t end) {
      GemmArgs part = whole;
      part.m = end - begin;
      part.a.values += begin * row_step;
      part.c += begin * whole.c_stride;
      backend.gemm(part);
    });
  } else {
    const std::size_t col_step = transpose_b == Transpose::no ? 1 : k;
    parallel_for(n, grain_of(m * k, kColGrain), [&](std::size_t begin, std::size_t end) {
      GemmArgs part = whole;
      part.n = end - begin;
      part.b.values += begin * col_step;
      part.c += begin;
      backend.gemm(part);
    });
  }
}

void gemm(const GemmShape& shape, std::span<const double> a, std::span<const double> b, std::span<double> c) {
  const std::size_t m = shape.m, n = shape.n, k = shape.k;
  check_matrix("A", a.size(), m, k);
  check_matrix("B", b.size(), k, n);
  check_matrix("C", c.size(), m, n);
  const bool a_lies = shape.a == Transpose::yes, b_lies = shape.b == Transpose::yes;
  const std::size_t a_row = a_lies ? 1 : k, a_step = a_lies ? m : 1;
  const std::size_t b_col = b_lies ? k : 1, b_step = b_lies ? 1 : n;
  parallel_for(m * n, grain_of(k, kRowGrain), [&](std::size_t begin, std::size_t end) {
    for (std::size_t at = begin; at < end; ++at) {
      const double* const row = a.data() + at / n * a_row;
      const double* const col = b.data() + at % n * b_col;
      double sum = 0;
      for (std::size_t i = 0; i < k; ++i) sum += row[i * a_step] * col[i * b_step];
      c[at] = sum;
    }
  });
}

// ---- convolutions

namespace {

// Filters and channels per part are multiples of this: the block that oneDNN computes with AVX-512.
constexpr std::size_t kLineGrain = 16;
// Partial sums of a gradient of weights, all together: 64 MiB.
constexpr std::size_t kPartialValues = 1u << 24;

std::size_t product(std::size_t lines, std::size_t others, const std::size_t (&extents)[3]) {
  std::size_t values = checked_mul(lines, others, "a convolution");
  for (const std::size_t extent : extents) values = checked_mul(values, extent, "a convolution");
  return values;
}

void check(const ConvolutionExtents& e, std::size_t x, std::size_t w, std::size_t y) {
  constexpr std::size_t kMost = std::numeric_limits<std::int32_t>::max();
  for (int axis = 0; axis < 3; ++axis) {
    for (const std::size_t extent : {e.in[axis], e.out[axis], e.kernel[axis], e.stride[axis]}) {
      if (extent == 0 || extent > kMost) {
        throw ShapeError(fmt::format("[convolution] an extent is {}, but must be from 1 to 2^31-1", extent));
      }
    }
    if (e.padding[axis] > kMost) throw ShapeError(fmt::format("[convolution] padding of {}", e.padding[axis]));
  }
  const auto expect = [](const char* name, std::size_t size, std::size_t wanted) {
    if (size != wanted) throw ShapeError(fmt::format("[convolution] {} has {} values, not {}", name, size, wanted));
  };
  expect("x", x, product(e.batch, e.channels, e.in));
  expect("w", w, product(e.filters, e.channels, e.kernel));
  expect("y", y, product(e.batch, e.filters, e.out));
}

bool is_empty(const ConvolutionExtents& e) { return e.batch == 0 || e.channels == 0 || e.filters == 0; }

/// Samples are split into `samples` ranges and filters (or channels) into `lines`; a thread computes one pair of
/// ranges.
struct Split {
  std::size_t samples, lines;
};

/// As many pairs as threads, if each has enough to do. Samples are split first: ranges of filters read the same input.
Split split(const ConvolutionExtents& e, std::size_t lines, std::size_t most_sample_parts) {
  const double work = static_cast<double>(e.batch) * static_cast<double>(e.filters * e.channels) *
                      static_cast<double>(out_values(e)) * static_cast<double>(kernel_values(e));
  const double worth = std::max(1.0, work / static_cast<double>(kPartWork));
  const std::size_t threads = static_cast<std::size_t>(pool_threads());
  const std::size_t parts = worth < static_cast<double>(threads) ? static_cast<std::size_t>(worth) : threads;
  const std::size_t samples = std::max<std::size_t>(1, std::min({parts, e.batch, most_sample_parts}));
  return {samples, std::clamp<std::size_t>(parts / samples, 1, (lines + kLineGrain - 1) / kLineGrain)};
}

struct Range {
  std::size_t begin, end;
};
Range range_of(std::size_t count, std::size_t grain, std::size_t part, std::size_t parts) {
  const std::size_t grains = (count + grain - 1) / grain;
  return {grains * part / parts * grain, std::min(count, grains * (part + 1) / parts * grain)};
}

/// The whole convolution: strides from the extents. What the kind does not compute is only read.
ConvolutionArgs whole(ConvolutionKind kind, const ConvolutionExtents& e, const float* x, const float* w,
                      const float* y) {
  return {.kind = kind,
          .extents = e,
          .x = const_cast<float*>(x),
          .x_sample = e.channels * in_values(e),
          .w = const_cast<float*>(w),
          .w_filter = e.channels * kernel_values(e),
          .y = const_cast<float*>(y),
          .y_sample = e.filters * out_values(e)};
}

/// Computes all parts on the pool. Parts of samples write gradients of weights to arrays that lie `w_apart` apart.
void compute(const Backend& backend, const ConvolutionArgs& all, Split parts, std::size_t w_apart = 0) {
  const ConvolutionExtents& e = all.extents;
  const bool splits_channels = all.kind == ConvolutionKind::backward_data;
  const auto compute_part = [&](std::size_t i) {
    const std::size_t sample_part = i / parts.lines;
    const Range samples = range_of(e.batch, 1, sample_part, parts.samples);
    const Range lines = range_of(splits_channels ? e.channels : e.filters, kLineGrain, i % parts.lines, parts.lines);
    ConvolutionArgs part = all;
    part.extents.batch = samples.end - samples.begin;
    part.x += samples.begin * all.x_sample;
    part.y += samples.begin * all.y_sample;
    part.w += sample_part * w_apart;
    if (splits_channels) {
      part.extents.channels = lines.end - lines.begin;
      part.x += lines.begin * in_values(e);
      part.w += lines.begin * kernel_values(e);
    } else {
      part.extents.filters = lines.end - lines.begin;
      part.w += lines.begin * all.w_filter;
      part.y += lines.begin * out_values(e);
    }
    backend.convolve(part);
  };
  parallel_rows(parts.samples * parts.lines, 1, compute_part, 1);
}

}  // namespace

void convolve(const ConvolutionExtents& e, std::span<const float> x, std::span<const float> w, std::span<float> y,
              const Backend& backend) {
  check(e, x.size(), w.size(), y.size());
  if (is_empty(e)) return std::fill(y.begin(), y.end(), 0.0f);
  compute(backend, whole(ConvolutionKind::forward, e, x.data(), w.data(), y.data()), split(e, e.filters, e.batch));
}

void convolve_backward_data(const ConvolutionExtents& e, std::span<const float> grad_y, std::span<const float> w,
                            std::span<float> grad_x, const Backend& backend) {
  check(e, grad_x.size(), w.size(), grad_y.size());
  if (is_empty(e)) return std::fill(grad_x.begin(), grad_x.end(), 0.0f);
  compute(backend, whole(ConvolutionKind::backward_data, e, grad_x.data(), w.data(), grad_y.data()),
          split(e, e.channels, e.batch));
}

namespace {

/// Calls body(index in x, in w, in y) for each product of sample `b`; taps outside the input have none.
template <class Body>
void for_each_product(const ConvolutionExtents& e, std::size_t b, Body&& body) {
  const std::size_t outputs = out_values(e), taps = kernel_values(e);
  for (std::size_t f = 0; f < e.filters; ++f) {
    for (std::size_t c = 0; c < e.channels; ++c) {
      for (std::size_t o = 0; o < outputs; ++o) {
        const std::size_t out[3] = {o / (e.out[1] * e.out[2]), o / e.out[2] % e.out[1], o % e.out[2]};
        for (std::size_t k = 0; k < taps; ++k) {
          const std::size_t tap[3] = {k / (e.kernel[1] * e.kernel[2]), k / e.kernel[2] % e.kernel[1], k % e.kernel[2]};
          std::size_t place = 0;
          bool inside = true;
          for (int axis = 0; axis < 3; ++axis) {
            const std::size_t in = out[axis] * e.stride[axis] + tap[axis] - e.padding[axis];  // wraps below 0
            inside = inside && in < e.in[axis];
            place = place * e.in[axis] + in;
          }
          if (!inside) continue;
          body((b * e.channels + c) * in_values(e) + place, (f * e.channels + c) * taps + k,
               (b * e.filters + f) * outputs + o);
        }
      }
    }
  }
}

}  // namespace

void convolve(const ConvolutionExtents& e, std::span<const double> x, std::span<const double> w, std::span<double> y) {
  check(e, x.size(), w.size(), y.size());
  std::ranges::fill(y, 0.0);
  parallel_rows(
      e.batch, 1,
      [&](std::size_t b) {
        for_each_product(e, b,
                         [&](std::size_t in, std::size_t weight, std::size_t out) { y[out] += x[in] * w[weight]; });
      },
      1);
}

void convolve_backward_data(const ConvolutionExtents& e, std::span<const double> grad_y, std::span<const double> w,
                            std::span<double> grad_x) {
  check(e, grad_x.size(), w.size(), grad_y.size());
  std::ranges::fill(grad_x, 0.0);
  parallel_rows(
      e.batch, 1,
      [&](std::size_t b) {
        for_each_product(
            e, b, [&](std::size_t in, std::size_t weight, std::size_t out) { grad_x[in] += grad_y[out] * w[weight]; });
      },
      1);
}

void convolve_backward_weights(const ConvolutionExtents& e, std::span<const float> x, std::span<const float> grad_y,
                               std::span<float> grad_w, const Backend& backend) {
  check(e, x.size(), grad_w.size(), grad_y.size());
  if (is_empty(e)) return;
  const Split parts = split(e, e.filters, kPartialValues / grad_w.size());
  thread_local std::vector<float> memory;  // belongs to the calling thread; other threads compute
  const std::span<float> partial = sized(memory, parts.samples * grad_w.size());
  compute(backend, whole(ConvolutionKind::backward_weights, e, x.data(), partial.data(), grad_y.data()), parts,
          grad_w.size());
  for (std::size_t part = 0; part < parts.samples; ++part) {
    const float* from = partial.data() + part * grad_w.size();
    for (std::size_t i = 0; i < grad_w.size(); ++i) grad_w[i] += from[i];
  }
}

}  // namespace imago::math
