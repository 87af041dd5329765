// A convolution is a product once each output's taps stand in a column: [C·K][outputs]. Columns are made for a few rows
// of outputs at a time, so that they stay in the cache whatever the image's size.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "math/plain.h"

namespace imago::math {

namespace {

// 1 MiB of columns: within the second-level cache of today's cores.
constexpr std::size_t kColumnValues = 1u << 18;

/// Rows of outputs (along the width) first … first + count, depth and height counted as one.
struct Rows {
  std::size_t first, count;
};

std::size_t rows_per_block(const ConvolutionExtents& e) {
  const std::size_t row_values = e.channels * kernel_values(e) * e.out[2];
  return std::clamp<std::size_t>(kColumnValues / row_values, 1, e.out[0] * e.out[1]);
}

/// Where output `o` meets tap `k` on an axis, or -1 outside the input.
std::ptrdiff_t input_at(const ConvolutionExtents& e, int axis, std::size_t o, std::size_t k) {
  const std::size_t at = o * e.stride[axis] + k;
  return at >= e.padding[axis] && at - e.padding[axis] < e.in[axis] ? static_cast<std::ptrdiff_t>(at - e.padding[axis])
                                                                    : -1;
}

/// Calls body(column values of one row, input row or null, tap on the width) for each row of each tap.
template <class Value, class Body>
void for_each_row(const ConvolutionExtents& e, Rows rows, Value* x, float* columns, Body&& body) {
  for (std::size_t c = 0; c < e.channels; ++c) {
    for (std::size_t kd = 0; kd < e.kernel[0]; ++kd) {
      for (std::size_t kh = 0; kh < e.kernel[1]; ++kh) {
        for (std::size_t kw = 0; kw < e.kernel[2]; ++kw) {
          for (std::size_t row = rows.first; row < rows.first + rows.count; ++row, columns += e.out[2]) {
            const std::ptrdiff_t d = input_at(e, 0, row / e.out[1], kd);
            const std::ptrdiff_t h = input_at(e, 1, row % e.out[1], kh);
            const std::size_t line =
                (c * e.in[0] + static_cast<std::size_t>(d)) * e.in[1] + static_cast<std::size_t>(h);
            body(columns, d < 0 || h < 0 ? nullptr : x + line * e.in[2], kw);
          }
        }
      }
    }
  }
}

/// The outputs of a row whose tap lies inside it.
struct Inside {
  std::size_t begin, end;
};
Inside outputs_inside(const ConvolutionExtents& e, std::size_t tap) {
  const std::size_t stride = e.stride[2];
  const std::size_t pad = e.padding[2];
  const std::size_t begin = pad > tap ? (pad - tap + stride - 1) / stride : 0;
  const std::size_t end = e.in[2] + pad > tap ? (e.in[2] + pad - tap - 1) / stride + 1 : 0;
  return {std::min(begin, e.out[2]), std::clamp(end, std::min(begin, e.out[2]), e.out[2])};
}

void gather(const ConvolutionExtents& e, Rows rows, const float* x, float* columns) {
  for_each_row(e, rows, x, columns, [&](float* to, const float* from, std::size_t tap) {
    const Inside inside = from != nullptr ? outputs_inside(e, tap) : Inside{0, 0};
    std::fill(to, to + inside.begin, 0.0f);
    for (std::size_t o = inside.begin; o < inside.end; ++o) to[o] = from[o * e.stride[2] + tap - e.padding[2]];
    std::fill(to + inside.end, to + e.out[2], 0.0f);
  });
}

void scatter_add(const ConvolutionExtents& e, Rows rows, float* columns, float* x) {
  for_each_row(e, rows, x, columns, [&](const float* from, float* to, std::size_t tap) {
    if (to == nullptr) return;
    const Inside inside = outputs_inside(e, tap);
    for (std::size_t o = inside.begin; o < inside.end; ++o) to[o * e.stride[2] + tap - e.padding[2]] += from[o];
  });
}

/// Calls body(sample, rows, columns) for all outputs, block by block, in order.
template <class Body>
void for_each_block(const ConvolutionExtents& e, Body&& body) {
  thread_local std::vector<float> columns;
  const std::size_t block = rows_per_block(e);
  const std::size_t rows = e.out[0] * e.out[1];
  columns.resize(std::max(columns.size(), e.channels * kernel_values(e) * block * e.out[2]));
  for (std::size_t sample = 0; sample < e.batch; ++sample) {
    for (std::size_t row = 0; row < rows; row += block) {
      body(sample, Rows{row, std::min(block, rows - row)}, columns.data());
    }
  }
}

}  // namespace

void columns_convolve(const ForwardArgs& args, GemmFunction gemm) {
  const ConvolutionExtents& e = args.extents;
  for_each_block(e, [&](std::size_t sample, Rows rows, float* columns) {
    gather(e, rows, args.x + sample * args.x_sample, columns);
    gemm({.m = e.filters,
          .n = rows.count * e.out[2],
          .k = e.channels * kernel_values(e),
          .transpose_a = Transpose::no,
          .transpose_b = Transpose::no,
          .a = args.w,
          .a_stride = args.w_filter,
          .b = columns,
          .b_stride = rows.count * e.out[2],
          .c = args.y + sample * args.y_sample + rows.first * e.out[2],
          .c_stride = out_values(e),
          .write = Write::replace});
  });
}

void columns_backward_data(const BackwardDataArgs& args, GemmFunction gemm) {
  const ConvolutionExtents& e = args.extents;
  for (std::size_t sample = 0; sample < e.batch; ++sample) {
    std::fill_n(args.x + sample * args.x_sample, e.channels * in_values(e), 0.0f);
  }
  for_each_block(e, [&](std::size_t sample, Rows rows, float* columns) {
    gemm({.m = e.channels * kernel_values(e),
          .n = rows.count * e.out[2],
          .k = e.filters,
          .transpose_a = Transpose::yes,
          .transpose_b = Transpose::no,
          .a = args.w,
          .a_stride = args.w_filter,
          .b = args.y + sample * args.y_sample + rows.first * e.out[2],
          .b_stride = out_values(e),
          .c = columns,
          .c_stride = rows.count * e.out[2],
          .write = Write::replace});
    scatter_add(e, rows, columns, args.x + sample * args.x_sample);
  });
}

void columns_backward_weights(const BackwardWeightsArgs& args, GemmFunction gemm) {
  const ConvolutionExtents& e = args.extents;
  for_each_block(e, [&](std::size_t sample, Rows rows, float* columns) {
    gather(e, rows, args.x + sample * args.x_sample, columns);
    gemm({.m = e.filters,
          .n = e.channels * kernel_values(e),
          .k = rows.count * e.out[2],
          .transpose_a = Transpose::no,
          .transpose_b = Transpose::yes,
          .a = args.y + sample * args.y_sample + rows.first * e.out[2],
          .a_stride = out_values(e),
          .b = columns,
          .b_stride = rows.count * e.out[2],
          .c = args.w,
          .c_stride = args.w_filter,
          .write = sample == 0 && rows.first == 0 ? Write::replace : Write::add});
  });
}

}  // namespace imago::math
