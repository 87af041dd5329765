#include "math/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"
#include "imago/error.h"
#include "math/backend.h"

namespace imago::math {

namespace {

// Multiplications worth a thread: some 5 µs of one core.
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

void gemm(const Backend& backend, const GemmShape& shape, std::span<const float> a, std::span<const float> b,
          std::span<float> c, Write write) {
  const auto [m, n, k, transpose_a, transpose_b] = shape;
  check_matrix("A", a.size(), m, k);
  check_matrix("B", b.size(), k, n);
  check_matrix("C", c.size(), m, n);
  if (m == 0 || n == 0) return;
  if (k == 0) {
    if (write == Write::replace) std::fill(c.begin(), c.end(), 0.0f);
    return;
  }
  const GemmArgs whole{.m = m,
                       .n = n,
                       .k = k,
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .a = a.data(),
                       .a_stride = transpose_a == Transpose::no ? k : m,
                       .b = b.data(),
                       .b_stride = transpose_b == Transpose::no ? n : k,
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
      part.a += begin * row_step;
      part.c += begin * whole.c_stride;
      backend.gemm(part);
    });
  } else {
    const std::size_t col_step = transpose_b == Transpose::no ? 1 : k;
    parallel_for(n, grain_of(m * k, kColGrain), [&](std::size_t begin, std::size_t end) {
      GemmArgs part = whole;
      part.n = end - begin;
      part.b += begin * col_step;
      part.c += begin;
      backend.gemm(part);
    });
  }
}

void gemm(const GemmShape& shape, std::span<const float> a, std::span<const float> b, std::span<float> c, Write write) {
  gemm(best_backend(), shape, a, b, c, write);
}

}  // namespace imago::math
